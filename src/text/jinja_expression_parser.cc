// What all rules of the grammar stand on: the tokens, the nodes that are made of them, and tuples, which every rule may
// begin with. The rules themselves, one function each, are in jinja_expression_operators.cc,
// jinja_expression_primary.cc and jinja_expression_postfix.cc.
#include "text/jinja_expression_parser.h"

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

Result<ExprPtr> ExpressionParser::make_binary(BinaryOperator op, ExprPtr left, ExprPtr right, int line) const {
  ExprPtr expr = make(ExprKind::kBinary, line);
  expr->binary = op;
  expr->children.push_back(std::move(left));
  expr->children.push_back(std::move(right));
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::make_constant(Value value, int line) const {
  ExprPtr expr = make(ExprKind::kConstant, line);
  expr->constant = std::move(value);
  return expr;
}

// ---- tuples ----

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

}  // namespace quire::jinja
