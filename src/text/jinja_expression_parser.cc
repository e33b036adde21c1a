// Recursive descent, one function a rule of the grammar. Depth is counted on the way down (the parser's own stack) and
// on the tree (long chains of operators grow it without nesting the source). See jinja_expression_parser.h.
#include "text/jinja_expression_parser.h"

#include <charconv>
#include <cstdlib>

namespace quire::jinja {

// ---- tokens ----

bool ExpressionParser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool ExpressionParser::at_any_name(Names names) const {
  if (current().kind != TokenKind::kName) return false;
  for (const std::string_view name : names) {
    if (current().text == name) return true;
  }
  return false;
}

Status ExpressionParser::error(const std::string& message, int line) const {
  return invalid_argument("line " + std::to_string(line) + ": " + message);
}

Status ExpressionParser::error(const std::string& message) const {
  return error(message, current().line);
}

Status ExpressionParser::expect_operator(std::string_view op) {
  if (skip_operator(op)) return ok_status();
  return error("expected '" + std::string(op) + "', got " + describe(current()));
}

Status ExpressionParser::expect(TokenKind kind, const char* what) {
  if (current().kind != kind) return error(std::string("expected ") + what + ", got " + describe(current()));
  next();
  return ok_status();
}

Result<std::string> ExpressionParser::expect_name() {
  if (current().kind != TokenKind::kName) return error("expected a name, got " + describe(current()));
  std::string name = current().text;
  next();
  return name;
}

Status ExpressionParser::check_nesting() const {
  if (nesting_ > kMaxTreeDepth) return error("the template nests too deeply");
  return ok_status();
}

// ---- nodes ----

ExprPtr ExpressionParser::make(ExprKind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

Result<ExprPtr> ExpressionParser::finish(ExprPtr expr) const {
  const auto take = [&](const ExprPtr& child) {
    if (child) expr->depth = std::max(expr->depth, child->depth + 1);
  };
  for (const ExprPtr& child : expr->children) take(child);
  for (const ExprPtr& child : expr->arguments.positional) take(child);
  for (const auto& [name, child] : expr->arguments.named) take(child);
  take(expr->arguments.star);
  take(expr->arguments.double_star);
  if (expr->depth > kMaxTreeDepth) return error("an expression of the template nests too deeply", expr->line);
  return expr;
}

Result<ExprPtr> ExpressionParser::make_unary(ExprKind kind, ExprPtr operand, int line) const {
  ExprPtr expr = make(kind, line);
  expr->children.push_back(std::move(operand));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::make_pair(ExprKind kind, ExprPtr left, ExprPtr right, int line) const {
  ExprPtr expr = make(kind, line);
  expr->children.push_back(std::move(left));
  expr->children.push_back(std::move(right));
  return finish(std::move(expr));
}

// ---- expressions ----

bool ExpressionParser::at_tuple_end(Names end_names) const {
  if (current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
      current().is_operator(")")) {
    return true;
  }
  return at_any_name(end_names);
}

template <typename ParseItem>
Result<ExprPtr> ExpressionParser::parse_tuple_of(Names end_names, bool is_parenthesized, ParseItem parse_item) {
  int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) RETURN_IF_ERROR(expect_operator(","));
    if (at_tuple_end(end_names)) break;
    ASSIGN_OR_RETURN(ExprPtr item, parse_item());
    items.push_back(std::move(item));
    if (!current().is_operator(",")) break;
    is_tuple = true;
    line = current().line;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!is_parenthesized) return error("expected an expression, got " + describe(current()));
  }
  ExprPtr tuple = make(ExprKind::kTuple, line);
  tuple->children = std::move(items);
  return finish(std::move(tuple));
}

Result<ExprPtr> ExpressionParser::parse_tuple(bool allows_condition, Names end_names, bool is_parenthesized) {
  return parse_tuple_of(end_names, is_parenthesized,
                        [&] { return allows_condition ? parse_expression() : parse_or(); });
}

Result<ExprPtr> ExpressionParser::parse_simple_tuple(Names end_names, bool allows_namespace) {
  return parse_tuple_of(end_names, false, [&] { return parse_primary(allows_namespace); });
}

Result<ExprPtr> ExpressionParser::parse_expression() {
  const Nesting nesting(*this);
  RETURN_IF_ERROR(check_nesting());
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr expr, parse_or());
  while (skip_name("if")) {
    ExprPtr condition = make(ExprKind::kCondition, line);
    ASSIGN_OR_RETURN(ExprPtr test, parse_or());
    ExprPtr otherwise;
    if (skip_name("else")) {
      ASSIGN_OR_RETURN(otherwise, parse_expression());
    }
    condition->children.push_back(std::move(expr));
    condition->children.push_back(std::move(test));
    condition->children.push_back(std::move(otherwise));
    ASSIGN_OR_RETURN(expr, finish(std::move(condition)));
    line = current().line;
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::parse_or() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_and());
  while (skip_name("or")) {
    ASSIGN_OR_RETURN(ExprPtr right, parse_and());
    ASSIGN_OR_RETURN(left, make_pair(ExprKind::kOr, std::move(left), std::move(right), line));
    line = current().line;
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_and() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_not());
  while (skip_name("and")) {
    ASSIGN_OR_RETURN(ExprPtr right, parse_not());
    ASSIGN_OR_RETURN(left, make_pair(ExprKind::kAnd, std::move(left), std::move(right), line));
    line = current().line;
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  RETURN_IF_ERROR(check_nesting());
  const int line = current().line;
  next();
  ASSIGN_OR_RETURN(ExprPtr operand, parse_not());
  return make_unary(ExprKind::kNot, std::move(operand), line);
}

Result<ExprPtr> ExpressionParser::parse_compare() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr first, parse_sum());
  ExprPtr expr = make(ExprKind::kCompare, line);
  expr->children.push_back(std::move(first));
  for (;;) {
    CompareOperator op;
    if (skip_operator("==")) {
      op = CompareOperator::kEq;
    } else if (skip_operator("!=")) {
      op = CompareOperator::kNe;
    } else if (skip_operator("<")) {
      op = CompareOperator::kLt;
    } else if (skip_operator("<=")) {
      op = CompareOperator::kLe;
    } else if (skip_operator(">")) {
      op = CompareOperator::kGt;
    } else if (skip_operator(">=")) {
      op = CompareOperator::kGe;
    } else if (skip_name("in")) {
      op = CompareOperator::kIn;
    } else if (current().is_name("not") && look().is_name("in")) {
      next();
      next();
      op = CompareOperator::kNotIn;
    } else {
      break;
    }
    ASSIGN_OR_RETURN(ExprPtr operand, parse_sum());
    expr->compares.push_back(op);
    expr->children.push_back(std::move(operand));
  }
  if (expr->compares.empty()) return std::move(expr->children[0]);
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::make_binary(BinaryOperator op, ExprPtr left, ExprPtr right, int line) const {
  ExprPtr expr = make(ExprKind::kBinary, line);
  expr->binary = op;
  expr->children.push_back(std::move(left));
  expr->children.push_back(std::move(right));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::parse_sum() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_concat());
  while (current().is_operator("+") || current().is_operator("-")) {
    const BinaryOperator op = current().text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSub;
    next();
    ASSIGN_OR_RETURN(ExprPtr right, parse_concat());
    ASSIGN_OR_RETURN(left, make_binary(op, std::move(left), std::move(right), line));
    line = current().line;
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_concat() {
  const int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr first, parse_product());
  if (!current().is_operator("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat, line);
  expr->children.push_back(std::move(first));
  while (skip_operator("~")) {
    ASSIGN_OR_RETURN(ExprPtr operand, parse_product());
    expr->children.push_back(std::move(operand));
  }
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::parse_product() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_power());
  for (;;) {
    BinaryOperator op;
    if (skip_operator("*")) {
      op = BinaryOperator::kMul;
    } else if (skip_operator("/")) {
      op = BinaryOperator::kDiv;
    } else if (skip_operator("//")) {
      op = BinaryOperator::kFloorDiv;
    } else if (skip_operator("%")) {
      op = BinaryOperator::kMod;
    } else {
      return left;
    }
    ASSIGN_OR_RETURN(ExprPtr right, parse_power());
    ASSIGN_OR_RETURN(left, make_binary(op, std::move(left), std::move(right), line));
    line = current().line;
  }
}

Result<ExprPtr> ExpressionParser::parse_power() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_unary(true));
  while (skip_operator("**")) {
    ASSIGN_OR_RETURN(ExprPtr right, parse_unary(true));
    ASSIGN_OR_RETURN(left, make_binary(BinaryOperator::kPow, std::move(left), std::move(right), line));
    line = current().line;
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_unary(bool allows_filters) {
  const Nesting nesting(*this);
  RETURN_IF_ERROR(check_nesting());
  const int line = current().line;
  ExprPtr expr;
  if (skip_operator("-")) {
    ASSIGN_OR_RETURN(expr, parse_unary(false));
    ASSIGN_OR_RETURN(expr, make_unary(ExprKind::kNegate, std::move(expr), line));
  } else if (skip_operator("+")) {
    ASSIGN_OR_RETURN(expr, parse_unary(false));
    ASSIGN_OR_RETURN(expr, make_unary(ExprKind::kPlus, std::move(expr), line));
  } else {
    ASSIGN_OR_RETURN(expr, parse_primary(false));
  }
  ASSIGN_OR_RETURN(expr, parse_postfix(std::move(expr)));
  if (!allows_filters) return expr;
  return parse_filter_expression(std::move(expr));
}

ExprPtr ExpressionParser::make_constant(Value value, int line) const {
  ExprPtr expr = make(ExprKind::kConstant, line);
  expr->constant = std::move(value);
  return expr;
}

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

Result<ExprPtr> ExpressionParser::parse_postfix(ExprPtr expr) {
  for (;;) {
    if (current().is_operator(".") || current().is_operator("[")) {
      ASSIGN_OR_RETURN(expr, parse_subscript(std::move(expr)));
    } else if (current().is_operator("(")) {
      ASSIGN_OR_RETURN(expr, parse_call(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::parse_filter_expression(ExprPtr expr) {
  for (;;) {
    if (current().is_operator("|")) {
      ASSIGN_OR_RETURN(expr, parse_filters(std::move(expr), false));
    } else if (current().is_name("is")) {
      ASSIGN_OR_RETURN(expr, parse_test(std::move(expr)));
    } else if (current().is_operator("(")) {
      ASSIGN_OR_RETURN(expr, parse_call(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::parse_subscript(ExprPtr object) {
  const int line = current().line;
  if (skip_operator(".")) {
    const Token token = current();
    next();
    if (token.kind == TokenKind::kName) {
      ASSIGN_OR_RETURN(ExprPtr expr, make_unary(ExprKind::kGetAttr, std::move(object), line));
      expr->name = token.text;
      return expr;
    }
    if (token.kind != TokenKind::kInteger) return error("expected name or number", token.line);
    ASSIGN_OR_RETURN(Value index, integer_constant(token.text));
    return make_pair(ExprKind::kGetItem, std::move(object), make_constant(std::move(index), token.line), line);
  }
  next();
  std::vector<ExprPtr> indices;
  while (!current().is_operator("]")) {
    if (!indices.empty()) RETURN_IF_ERROR(expect_operator(","));
    ASSIGN_OR_RETURN(ExprPtr index, parse_index());
    indices.push_back(std::move(index));
  }
  next();
  if (indices.size() == 1 && indices[0]->kind == ExprKind::kSlice) {
    ExprPtr expr = std::move(indices[0]);
    expr->children.insert(expr->children.begin(), std::move(object));
    return finish(std::move(expr));
  }
  if (indices.size() == 1) return make_pair(ExprKind::kGetItem, std::move(object), std::move(indices[0]), line);
  for (const ExprPtr& index : indices) {
    if (index->kind == ExprKind::kSlice) return error("a slice among several subscripts is not supported", line);
  }
  ExprPtr tuple = make(ExprKind::kTuple, line);
  tuple->children = std::move(indices);
  ASSIGN_OR_RETURN(tuple, finish(std::move(tuple)));
  return make_pair(ExprKind::kGetItem, std::move(object), std::move(tuple), line);
}

Result<ExprPtr> ExpressionParser::parse_index() {
  ExprPtr expr = make(ExprKind::kSlice, current().line);
  if (skip_operator(":")) {
    expr->children.push_back(nullptr);
  } else {
    ASSIGN_OR_RETURN(ExprPtr first, parse_expression());
    if (!skip_operator(":")) return first;
    expr->children.push_back(std::move(first));
  }
  const auto at_end = [&] { return current().is_operator("]") || current().is_operator(","); };
  ExprPtr stop, step;
  if (!current().is_operator(":") && !at_end()) {
    ASSIGN_OR_RETURN(stop, parse_expression());
  }
  if (skip_operator(":") && !at_end()) {
    ASSIGN_OR_RETURN(step, parse_expression());
  }
  expr->children.push_back(std::move(stop));
  expr->children.push_back(std::move(step));
  return expr;
}

Result<CallArguments> ExpressionParser::parse_call_arguments() {
  const int line = current().line;
  const auto ensure = [&](bool is_valid) {
    return is_valid ? ok_status() : error("invalid syntax for function call expression", line);
  };
  CallArguments arguments;
  RETURN_IF_ERROR(expect_operator("("));
  bool needs_comma = false;
  while (!current().is_operator(")")) {
    if (needs_comma) {
      RETURN_IF_ERROR(expect_operator(","));
      if (current().is_operator(")")) break;
    }
    needs_comma = true;
    if (skip_operator("*")) {
      RETURN_IF_ERROR(ensure(!arguments.star && !arguments.double_star));
      ASSIGN_OR_RETURN(arguments.star, parse_expression());
    } else if (skip_operator("**")) {
      RETURN_IF_ERROR(ensure(!arguments.double_star));
      ASSIGN_OR_RETURN(arguments.double_star, parse_expression());
    } else if (current().kind == TokenKind::kName && look().is_operator("=")) {
      RETURN_IF_ERROR(ensure(!arguments.double_star));
      std::string name = current().text;
      for (const auto& [other, value] : arguments.named) {
        if (other == name) return error("keyword argument repeated: " + name);
      }
      next();
      next();
      ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      RETURN_IF_ERROR(ensure(!arguments.star && !arguments.double_star && arguments.named.empty()));
      ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
      arguments.positional.push_back(std::move(value));
    }
  }
  RETURN_IF_ERROR(expect_operator(")"));
  return arguments;
}

Result<ExprPtr> ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr expr = make(ExprKind::kCall, current().line);
  ASSIGN_OR_RETURN(expr->arguments, parse_call_arguments());
  expr->children.push_back(std::move(callee));
  return finish(std::move(expr));
}

Result<std::string> ExpressionParser::parse_dotted_name() {
  ASSIGN_OR_RETURN(std::string name, expect_name());
  while (skip_operator(".")) {
    ASSIGN_OR_RETURN(const std::string part, expect_name());
    name += "." + part;
  }
  return name;
}

Result<ExprPtr> ExpressionParser::parse_filters(ExprPtr expr, bool starts_inline) {
  while (starts_inline || current().is_operator("|")) {
    if (!starts_inline) next();
    starts_inline = false;
    ExprPtr filter = make(ExprKind::kFilter, current().line);
    ASSIGN_OR_RETURN(filter->name, parse_dotted_name());
    if (current().is_operator("(")) {
      ASSIGN_OR_RETURN(filter->arguments, parse_call_arguments());
    }
    filter->children.push_back(std::move(expr));
    ASSIGN_OR_RETURN(expr, finish(std::move(filter)));
  }
  return expr;
}

bool ExpressionParser::starts_test_argument() const {
  switch (current().kind) {
    case TokenKind::kName:
      return !current().is_name("else") && !current().is_name("or") && !current().is_name("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return current().is_operator("[") || current().is_operator("{");
  }
}

Result<ExprPtr> ExpressionParser::parse_test(ExprPtr operand) {
  ExprPtr test = make(ExprKind::kTest, current().line);
  const int line = current().line;
  next();
  const bool is_negated = skip_name("not");
  ASSIGN_OR_RETURN(test->name, parse_dotted_name());
  if (current().is_operator("(")) {
    ASSIGN_OR_RETURN(test->arguments, parse_call_arguments());
  } else if (starts_test_argument()) {
    if (current().is_name("is")) return error("You cannot chain multiple tests with is");
    ASSIGN_OR_RETURN(ExprPtr argument, parse_primary(false));
    ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument)));
    test->arguments.positional.push_back(std::move(argument));
  }
  test->children.push_back(std::move(operand));
  ASSIGN_OR_RETURN(test, finish(std::move(test)));
  if (!is_negated) return test;
  return make_unary(ExprKind::kNot, std::move(test), line);
}

}  // namespace quire::jinja
