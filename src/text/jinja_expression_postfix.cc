// What may follow an operand: subscripts and slices, calls, filters ("x | trim") and tests ("x is none").
#include "text/jinja_expression_parser.h"

namespace quire::jinja {

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

// ---- subscripts ----

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

// ---- calls ----

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

// ---- filters and tests ----

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
