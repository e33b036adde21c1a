// What an operand begins with: a name, a constant, or something in brackets (parentheses, a list, a dict).
#include "text/jinja_expression_parser.h"

#include <charconv>
#include <cstdlib>

namespace quire::jinja {

Result<ExprPtr> ExpressionParser::parse_primary(bool allows_namespace) {
  const Token token = current();
  switch (token.kind) {
    case TokenKind::kName: {
      next();
      if (token.text == "true" || token.text == "True") return make_constant(Value::boolean(true), token.line);
      if (token.text == "false" || token.text == "False") return make_constant(Value::boolean(false), token.line);
      if (token.text == "none" || token.text == "None") return make_constant(Value::none(), token.line);
      if (allows_namespace && skip_operator(".")) {
        ExprPtr expr = make(ExprKind::kNamespaceRef, token.line);
        expr->name = token.text;
        ASSIGN_OR_RETURN(expr->attribute, expect_name());
        return expr;
      }
      ExprPtr expr = make(ExprKind::kName, token.line);
      expr->name = token.text;
      return expr;
    }
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) {
        text += current().text;
        next();
      }
      return make_constant(Value::string(std::move(text), true), token.line);
    }
    case TokenKind::kInteger: {
      next();
      ASSIGN_OR_RETURN(Value value, integer_constant(token.text));
      return make_constant(std::move(value), token.line);
    }
    case TokenKind::kFloat: {
      next();
      double value = 0;
      const auto [end, code] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (code != std::errc() && code != std::errc::result_out_of_range) return error("bad number", token.line);
      if (code == std::errc::result_out_of_range) value = std::strtod(token.text.c_str(), nullptr);
      return make_constant(Value::number(value), token.line);
    }
    default:
      break;
  }
  if (token.is_operator("(")) {
    next();
    ASSIGN_OR_RETURN(ExprPtr expr, parse_tuple(true, {}, true));
    RETURN_IF_ERROR(expect_operator(")"));
    return expr;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  return error("unexpected " + describe(token), token.line);
}

Result<Value> ExpressionParser::integer_constant(const std::string& text) const {
  int base = 10;
  size_t begin = 0;
  if (text.size() > 2 && text[0] == '0') {
    const char kind = static_cast<char>(text[1] | 0x20);
    base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    begin = base == 10 ? 0 : 2;
  }
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data() + begin, text.data() + text.size(), value, base);
  if (code == std::errc()) return Value::integer(value);
  if (base != 10) return error("an integer exceeds 64 bits");
  return Value::big_integer(text);
}

Result<ExprPtr> ExpressionParser::parse_list() {
  ExprPtr expr = make(ExprKind::kList, current().line);
  next();
  while (!current().is_operator("]")) {
    if (!expr->children.empty()) RETURN_IF_ERROR(expect_operator(","));
    if (current().is_operator("]")) break;
    ASSIGN_OR_RETURN(ExprPtr item, parse_expression());
    expr->children.push_back(std::move(item));
  }
  next();
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::parse_dict() {
  ExprPtr expr = make(ExprKind::kDict, current().line);
  next();
  while (!current().is_operator("}")) {
    if (!expr->children.empty()) RETURN_IF_ERROR(expect_operator(","));
    if (current().is_operator("}")) break;
    ASSIGN_OR_RETURN(ExprPtr key, parse_expression());
    RETURN_IF_ERROR(expect_operator(":"));
    ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
    expr->children.push_back(std::move(key));
    expr->children.push_back(std::move(value));
  }
  next();
  return finish(std::move(expr));
}

}  // namespace quire::jinja
