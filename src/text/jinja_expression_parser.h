// Tokens → expressions of a template, with jinja2's grammar and precedences: the half of the parser that the one of
// statements (jinja_parser.cc, its only caller) derives from. It owns the tokens and the place among them. One parser
// is one template on one thread.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace quire::jinja {

inline constexpr int kMaxTreeDepth = 200;  // of the source's nesting and of the tree

class ExpressionParser {
 public:
  ExpressionParser(const ExpressionParser&) = delete;
  ExpressionParser& operator=(const ExpressionParser&) = delete;

 protected:
  using Names = std::initializer_list<std::string_view>;

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  ~ExpressionParser() = default;

  // ---- tokens ----
  const Token& current() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  bool at_any_name(Names names) const;
  Status error(const std::string& message, int line) const;
  Status error(const std::string& message) const;
  Status expect_operator(std::string_view op);
  Status expect(TokenKind kind, const char* what);
  Result<std::string> expect_name();

  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };
  Status check_nesting() const;

  // ---- nodes ----
  ExprPtr make(ExprKind kind, int line) const;

  // ---- expressions ----
  Result<ExprPtr> parse_tuple(bool allows_condition, Names end_names, bool is_parenthesized);
  Result<ExprPtr> parse_simple_tuple(Names end_names, bool allows_namespace);
  Result<ExprPtr> parse_expression();
  Result<ExprPtr> parse_primary(bool allows_namespace);
  Result<ExprPtr> parse_filters(ExprPtr expr, bool starts_inline);

 private:
  // ---- nodes ----
  Result<ExprPtr> finish(ExprPtr expr) const;
  Result<ExprPtr> make_unary(ExprKind kind, ExprPtr operand, int line) const;
  Result<ExprPtr> make_pair(ExprKind kind, ExprPtr left, ExprPtr right, int line) const;
  Result<ExprPtr> make_binary(BinaryOperator op, ExprPtr left, ExprPtr right, int line) const;
  ExprPtr make_constant(Value value, int line) const;

  // ---- tuples ----
  bool at_tuple_end(Names end_names) const;
  template <typename ParseItem>
  Result<ExprPtr> parse_tuple_of(Names end_names, bool is_parenthesized, ParseItem parse_item);

  // ---- operators (jinja_expression_operators.cc) ----
  Result<ExprPtr> parse_or();
  Result<ExprPtr> parse_and();
  Result<ExprPtr> parse_not();
  Result<ExprPtr> parse_compare();
  Result<ExprPtr> parse_sum();
  Result<ExprPtr> parse_concat();
  Result<ExprPtr> parse_product();
  Result<ExprPtr> parse_power();
  Result<ExprPtr> parse_unary(bool allows_filters);

  // ---- operands (jinja_expression_primary.cc) ----
  Result<Value> integer_constant(const std::string& text) const;
  Result<ExprPtr> parse_list();
  Result<ExprPtr> parse_dict();

  // ---- what follows an operand (jinja_expression_postfix.cc) ----
  Result<ExprPtr> parse_postfix(ExprPtr expr);
  Result<ExprPtr> parse_filter_expression(ExprPtr expr);
  Result<ExprPtr> parse_subscript(ExprPtr object);
  // An expression, or a slice whose object is added by the caller.
  Result<ExprPtr> parse_index();
  Result<CallArguments> parse_call_arguments();
  Result<ExprPtr> parse_call(ExprPtr callee);
  Result<std::string> parse_dotted_name();
  bool starts_test_argument() const;
  Result<ExprPtr> parse_test(ExprPtr operand);

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace quire::jinja
