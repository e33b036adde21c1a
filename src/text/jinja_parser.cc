// Recursive descent, one function a rule of the grammar. Depth is counted on the way down (the parser's own stack) and
// on the tree (long chains of operators grow it without nesting the source). See jinja_parser.h.
#include "text/jinja_parser.h"

#include <charconv>
#include <set>

#include "text/jinja_lexer.h"

namespace quire::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<std::unique_ptr<TemplateTree>> run() {
    auto tree = std::make_unique<TemplateTree>();
    ASSIGN_OR_RETURN(tree->body, parse_body({}));
    return tree;
  }

 private:
  // ---- tokens ----
  const Token& current() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }
  bool skip_operator(std::string_view op) {
    if (!current().is_operator(op)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!current().is_name(name)) return false;
    next();
    return true;
  }
  Status error(const std::string& message, int line) const {
    return invalid_argument("line " + std::to_string(line) + ": " + message);
  }
  Status error(const std::string& message) const { return error(message, current().line); }
  Status expect_operator(std::string_view op) {
    if (skip_operator(op)) return ok_status();
    return error("expected '" + std::string(op) + "', got " + describe(current()));
  }
  Status expect(TokenKind kind, const char* what) {
    if (current().kind != kind) return error(std::string("expected ") + what + ", got " + describe(current()));
    next();
    return ok_status();
  }
  Result<std::string> expect_name() {
    if (current().kind != TokenKind::kName) return error("expected a name, got " + describe(current()));
    std::string name = current().text;
    next();
    return name;
  }

  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };
  Status check_nesting() const {
    if (nesting_ > kMaxTreeDepth) return error("the template nests too deeply");
    return ok_status();
  }

  // ---- nodes ----
  ExprPtr make(ExprKind kind, int line) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }

  Result<ExprPtr> finish(ExprPtr expr) const {
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

  Result<ExprPtr> make_unary(ExprKind kind, ExprPtr operand, int line) const {
    ExprPtr expr = make(kind, line);
    expr->children.push_back(std::move(operand));
    return finish(std::move(expr));
  }

  Result<ExprPtr> make_pair(ExprKind kind, ExprPtr left, ExprPtr right, int line) const {
    ExprPtr expr = make(kind, line);
    expr->children.push_back(std::move(left));
    expr->children.push_back(std::move(right));
    return finish(std::move(expr));
  }

  StmtPtr make(StmtKind kind, int line) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // ---- statements ----
  bool at_end_tag(Names end_tags) const {
    if (current().kind != TokenKind::kName) return false;
    for (const std::string_view tag : end_tags) {
      if (current().text == tag) return true;
    }
    return false;
  }

  // Up to "{% tag" of one of the end tags, which becomes the current token; or to the end of the template without any.
  Result<Body> parse_body(Names end_tags) {
    const Nesting nesting(*this);
    RETURN_IF_ERROR(check_nesting());
    Body body;
    StmtPtr output;
    const auto flush = [&] {
      if (output) body.push_back(std::move(output));
      output = nullptr;
    };
    const auto add_output = [&](ExprPtr expr) {
      if (!output) output = make(StmtKind::kOutput, expr->line);
      output->depth = std::max(output->depth, expr->depth + 1);
      output->exprs.push_back(std::move(expr));
    };
    while (current().kind != TokenKind::kEnd) {
      if (current().kind == TokenKind::kData) {
        ExprPtr data = make(ExprKind::kConstant, current().line);
        data->constant = Value::string(current().text, true);
        add_output(std::move(data));
        next();
      } else if (current().kind == TokenKind::kVariableBegin) {
        next();
        ASSIGN_OR_RETURN(ExprPtr expr, parse_tuple(true, {}, false));
        RETURN_IF_ERROR(expect(TokenKind::kVariableEnd, "'}}'"));
        add_output(std::move(expr));
      } else if (current().kind == TokenKind::kBlockBegin) {
        flush();
        next();
        if (at_end_tag(end_tags)) return body;
        ASSIGN_OR_RETURN(StmtPtr stmt, parse_statement());
        RETURN_IF_ERROR(expect(TokenKind::kBlockEnd, "'%}'"));
        body.push_back(std::move(stmt));
      } else {
        return error("unexpected " + describe(current()));
      }
    }
    flush();
    if (end_tags.size() > 0) {
      return error("unexpected end of template; '" + std::string(*(end_tags.end() - 1)) + "' is missing");
    }
    return body;
  }

  // "%} body {% end tag"; with drops_end_tag the tag's name is consumed as well.
  Result<Body> parse_block_body(Names end_tags, bool drops_end_tag) {
    skip_operator(":");
    RETURN_IF_ERROR(expect(TokenKind::kBlockEnd, "'%}'"));
    ASSIGN_OR_RETURN(Body body, parse_body(end_tags));
    if (drops_end_tag) next();
    return body;
  }

  Result<StmtPtr> finish(StmtPtr stmt) const {
    for (const auto* exprs : {&stmt->exprs, &stmt->parameters, &stmt->defaults}) {
      for (const ExprPtr& expr : *exprs) {
        if (expr) stmt->depth = std::max(stmt->depth, expr->depth + 1);
      }
    }
    for (const Body& body : stmt->bodies) {
      for (const StmtPtr& child : body) stmt->depth = std::max(stmt->depth, child->depth + 1);
    }
    if (stmt->depth > kMaxTreeDepth) return error("the template nests too deeply", stmt->line);
    return stmt;
  }

  Result<StmtPtr> parse_statement() {
    if (current().kind != TokenKind::kName) return error("tag name expected, got " + describe(current()));
    const std::string tag = current().text;
    const int line = current().line;
    if (tag == "for") return parse_for();
    if (tag == "if") return parse_if();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "call") return parse_call_block();
    if (tag == "filter") return parse_filter_block();
    if (tag == "with") return parse_with();
    if (tag == "print") return parse_print();
    if (tag == "generation") return parse_generation();
    if (tag == "block") return parse_block();
    if (tag == "break" || tag == "continue") {
      next();
      return make(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
    }
    for (const std::string_view refused : {"include", "import", "from", "extends", "autoescape"}) {
      if (tag == refused) {
        return unimplemented("line " + std::to_string(line) + ": {% " + tag +
                             " %} is not supported in chat templates, which are one file and not HTML");
      }
    }
    return error("encountered unknown tag '" + tag + "'", line);
  }

  Result<StmtPtr> parse_for() {
    StmtPtr stmt = make(StmtKind::kFor, current().line);
    next();
    ASSIGN_OR_RETURN(ExprPtr target, parse_assign_target(true, {"in"}, false));
    if (!skip_name("in")) return error("expected 'in', got " + describe(current()));
    ASSIGN_OR_RETURN(ExprPtr iterable, parse_tuple(false, {"recursive"}, false));
    ExprPtr test;
    if (skip_name("if")) {
      ASSIGN_OR_RETURN(test, parse_expression());
    }
    stmt->is_recursive = skip_name("recursive");
    stmt->exprs.push_back(std::move(target));
    stmt->exprs.push_back(std::move(iterable));
    stmt->exprs.push_back(std::move(test));
    ASSIGN_OR_RETURN(Body body, parse_block_body({"else", "endfor"}, false));
    stmt->bodies.push_back(std::move(body));
    const bool has_else = current().is_name("else");
    next();
    Body else_body;
    if (has_else) {
      ASSIGN_OR_RETURN(else_body, parse_block_body({"endfor"}, true));
    }
    stmt->bodies.push_back(std::move(else_body));
    return finish(std::move(stmt));
  }

  Result<StmtPtr> parse_if() {
    StmtPtr stmt = make(StmtKind::kIf, current().line);
    next();
    for (;;) {
      ASSIGN_OR_RETURN(ExprPtr test, parse_tuple(false, {}, false));
      ASSIGN_OR_RETURN(Body body, parse_block_body({"elif", "else", "endif"}, false));
      stmt->exprs.push_back(std::move(test));
      stmt->bodies.push_back(std::move(body));
      const std::string tag = current().text;
      next();
      if (tag == "elif") continue;
      if (tag == "else") {
        ASSIGN_OR_RETURN(Body else_body, parse_block_body({"endif"}, true));
        stmt->bodies.push_back(std::move(else_body));
      }
      return finish(std::move(stmt));
    }
  }

  Result<StmtPtr> parse_set() {
    const int line = current().line;
    next();
    ASSIGN_OR_RETURN(ExprPtr target, parse_assign_target(true, {}, true));
    if (skip_operator("=")) {
      StmtPtr stmt = make(StmtKind::kSet, line);
      ASSIGN_OR_RETURN(ExprPtr value, parse_tuple(true, {}, false));
      stmt->exprs.push_back(std::move(target));
      stmt->exprs.push_back(std::move(value));
      return finish(std::move(stmt));
    }
    StmtPtr stmt = make(StmtKind::kSetBlock, line);
    ExprPtr filter;
    if (current().is_operator("|")) {
      ASSIGN_OR_RETURN(filter, parse_filters(nullptr, false));
    }
    stmt->exprs.push_back(std::move(target));
    stmt->exprs.push_back(std::move(filter));
    ASSIGN_OR_RETURN(Body body, parse_block_body({"endset"}, true));
    stmt->bodies.push_back(std::move(body));
    return finish(std::move(stmt));
  }

  Status parse_signature(Stmt& stmt) {
    RETURN_IF_ERROR(expect_operator("("));
    std::set<std::string> names;
    while (!current().is_operator(")")) {
      if (!stmt.parameters.empty()) RETURN_IF_ERROR(expect_operator(","));
      ASSIGN_OR_RETURN(ExprPtr parameter, parse_name_target());
      parameter->use = NameUse::kParameter;
      if (!names.insert(parameter->name).second) {
        return error("duplicate argument '" + parameter->name + "'", parameter->line);
      }
      if (skip_operator("=")) {
        ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
        stmt.defaults.push_back(std::move(value));
      } else if (!stmt.defaults.empty()) {
        return error("non-default argument follows default argument");
      }
      stmt.parameters.push_back(std::move(parameter));
    }
    return expect_operator(")");
  }

  Result<StmtPtr> parse_macro() {
    StmtPtr stmt = make(StmtKind::kMacro, current().line);
    next();
    ASSIGN_OR_RETURN(ExprPtr name, parse_name_target());
    stmt->name = name->name;
    RETURN_IF_ERROR(parse_signature(*stmt));
    ASSIGN_OR_RETURN(Body body, parse_block_body({"endmacro"}, true));
    stmt->bodies.push_back(std::move(body));
    return finish(std::move(stmt));
  }

  Result<StmtPtr> parse_call_block() {
    StmtPtr stmt = make(StmtKind::kCallBlock, current().line);
    next();
    if (current().is_operator("(")) RETURN_IF_ERROR(parse_signature(*stmt));
    ASSIGN_OR_RETURN(ExprPtr call, parse_expression());
    if (call->kind != ExprKind::kCall) return error("expected call", stmt->line);
    stmt->exprs.push_back(std::move(call));
    ASSIGN_OR_RETURN(Body body, parse_block_body({"endcall"}, true));
    stmt->bodies.push_back(std::move(body));
    return finish(std::move(stmt));
  }

  Result<StmtPtr> parse_generation() {
    StmtPtr stmt = make(StmtKind::kCallBlock, current().line);
    next();
    stmt->exprs.push_back(nullptr);
    ASSIGN_OR_RETURN(Body body, parse_block_body({"endgeneration"}, true));
    stmt->bodies.push_back(std::move(body));
    return finish(std::move(stmt));
  }

  Result<StmtPtr> parse_block() {
    StmtPtr stmt = make(StmtKind::kBlock, current().line);
    next();
    ASSIGN_OR_RETURN(stmt->name, expect_name());
    if (current().is_name("scoped") || current().is_name("required")) {
      return unimplemented("line " + std::to_string(stmt->line) +
                           ": a scoped or required block is not supported in chat templates");
    }
    ASSIGN_OR_RETURN(Body body, parse_block_body({"endblock"}, true));
    stmt->bodies.push_back(std::move(body));
    skip_name(stmt->name);
    return finish(std::move(stmt));
  }

  Result<StmtPtr> parse_filter_block() {
    StmtPtr stmt = make(StmtKind::kFilterBlock, current().line);
    next();
    ASSIGN_OR_RETURN(ExprPtr filter, parse_filters(nullptr, true));
    stmt->exprs.push_back(std::move(filter));
    ASSIGN_OR_RETURN(Body body, parse_block_body({"endfilter"}, true));
    stmt->bodies.push_back(std::move(body));
    return finish(std::move(stmt));
  }

  Result<StmtPtr> parse_with() {
    StmtPtr stmt = make(StmtKind::kWith, current().line);
    next();
    std::vector<ExprPtr> values;
    while (current().kind != TokenKind::kBlockEnd) {
      if (!values.empty()) RETURN_IF_ERROR(expect_operator(","));
      ASSIGN_OR_RETURN(ExprPtr target, parse_assign_target(true, {}, false));
      set_use(*target, NameUse::kParameter);
      RETURN_IF_ERROR(expect_operator("="));
      ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
      stmt->exprs.push_back(std::move(target));
      values.push_back(std::move(value));
    }
    for (ExprPtr& value : values) stmt->exprs.push_back(std::move(value));
    ASSIGN_OR_RETURN(Body body, parse_block_body({"endwith"}, true));
    stmt->bodies.push_back(std::move(body));
    return finish(std::move(stmt));
  }

  Result<StmtPtr> parse_print() {
    StmtPtr stmt = make(StmtKind::kOutput, current().line);
    next();
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->exprs.empty()) RETURN_IF_ERROR(expect_operator(","));
      ASSIGN_OR_RETURN(ExprPtr expr, parse_expression());
      stmt->exprs.push_back(std::move(expr));
    }
    return finish(std::move(stmt));
  }

  // ---- targets of assignments ----
  static void set_use(Expr& target, NameUse use) {
    target.use = use;
    for (const ExprPtr& child : target.children) set_use(*child, use);
  }

  Result<ExprPtr> parse_name_target() {
    const int line = current().line;
    ExprPtr expr = make(ExprKind::kName, line);
    ASSIGN_OR_RETURN(expr->name, expect_name());
    expr->use = NameUse::kStore;
    RETURN_IF_ERROR(check_target(*expr));
    return expr;
  }

  Status check_target(const Expr& target) const {
    switch (target.kind) {
      case ExprKind::kName:
        for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
          if (target.name == reserved) return error("can't assign to '" + target.name + "'", target.line);
        }
        return ok_status();
      case ExprKind::kNamespaceRef:
        return ok_status();
      case ExprKind::kTuple:
        for (const ExprPtr& child : target.children) RETURN_IF_ERROR(check_target(*child));
        return ok_status();
      default:
        return error("can't assign to this expression", target.line);
    }
  }

  Result<ExprPtr> parse_assign_target(bool allows_tuple, Names end_names, bool allows_namespace) {
    ExprPtr target;
    if (allows_tuple) {
      ASSIGN_OR_RETURN(target, parse_simple_tuple(end_names, allows_namespace));
    } else {
      ASSIGN_OR_RETURN(target, parse_primary(allows_namespace));
    }
    set_use(*target, NameUse::kStore);
    RETURN_IF_ERROR(check_target(*target));
    return target;
  }

  // ---- expressions ----
  bool at_tuple_end(Names end_names) const {
    if (current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
        current().is_operator(")")) {
      return true;
    }
    return at_end_tag(end_names);
  }

  template <typename ParseItem>
  Result<ExprPtr> parse_tuple_of(Names end_names, bool is_parenthesized, ParseItem parse_item) {
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

  Result<ExprPtr> parse_tuple(bool allows_condition, Names end_names, bool is_parenthesized) {
    return parse_tuple_of(end_names, is_parenthesized,
                          [&] { return allows_condition ? parse_expression() : parse_or(); });
  }

  Result<ExprPtr> parse_simple_tuple(Names end_names, bool allows_namespace) {
    return parse_tuple_of(end_names, false, [&] { return parse_primary(allows_namespace); });
  }

  Result<ExprPtr> parse_expression() {
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

  Result<ExprPtr> parse_or() {
    int line = current().line;
    ASSIGN_OR_RETURN(ExprPtr left, parse_and());
    while (skip_name("or")) {
      ASSIGN_OR_RETURN(ExprPtr right, parse_and());
      ASSIGN_OR_RETURN(left, make_pair(ExprKind::kOr, std::move(left), std::move(right), line));
      line = current().line;
    }
    return left;
  }

  Result<ExprPtr> parse_and() {
    int line = current().line;
    ASSIGN_OR_RETURN(ExprPtr left, parse_not());
    while (skip_name("and")) {
      ASSIGN_OR_RETURN(ExprPtr right, parse_not());
      ASSIGN_OR_RETURN(left, make_pair(ExprKind::kAnd, std::move(left), std::move(right), line));
      line = current().line;
    }
    return left;
  }

  Result<ExprPtr> parse_not() {
    if (!current().is_name("not")) return parse_compare();
    const Nesting nesting(*this);
    RETURN_IF_ERROR(check_nesting());
    const int line = current().line;
    next();
    ASSIGN_OR_RETURN(ExprPtr operand, parse_not());
    return make_unary(ExprKind::kNot, std::move(operand), line);
  }

  Result<ExprPtr> parse_compare() {
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

  Result<ExprPtr> make_binary(BinaryOperator op, ExprPtr left, ExprPtr right, int line) const {
    ExprPtr expr = make(ExprKind::kBinary, line);
    expr->binary = op;
    expr->children.push_back(std::move(left));
    expr->children.push_back(std::move(right));
    return finish(std::move(expr));
  }

  Result<ExprPtr> parse_sum() {
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

  Result<ExprPtr> parse_concat() {
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

  Result<ExprPtr> parse_product() {
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

  Result<ExprPtr> parse_power() {
    int line = current().line;
    ASSIGN_OR_RETURN(ExprPtr left, parse_unary(true));
    while (skip_operator("**")) {
      ASSIGN_OR_RETURN(ExprPtr right, parse_unary(true));
      ASSIGN_OR_RETURN(left, make_binary(BinaryOperator::kPow, std::move(left), std::move(right), line));
      line = current().line;
    }
    return left;
  }

  Result<ExprPtr> parse_unary(bool allows_filters) {
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

  ExprPtr make_constant(Value value, int line) const {
    ExprPtr expr = make(ExprKind::kConstant, line);
    expr->constant = std::move(value);
    return expr;
  }

  Result<ExprPtr> parse_primary(bool allows_namespace) {
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

  Result<Value> integer_constant(const std::string& text) const {
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

  Result<ExprPtr> parse_list() {
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

  Result<ExprPtr> parse_dict() {
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

  Result<ExprPtr> parse_postfix(ExprPtr expr) {
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

  Result<ExprPtr> parse_filter_expression(ExprPtr expr) {
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

  Result<ExprPtr> parse_subscript(ExprPtr object) {
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

  // An expression, or a slice whose object is added by the caller.
  Result<ExprPtr> parse_index() {
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

  Result<CallArguments> parse_call_arguments() {
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

  Result<ExprPtr> parse_call(ExprPtr callee) {
    ExprPtr expr = make(ExprKind::kCall, current().line);
    ASSIGN_OR_RETURN(expr->arguments, parse_call_arguments());
    expr->children.push_back(std::move(callee));
    return finish(std::move(expr));
  }

  Result<std::string> parse_dotted_name() {
    ASSIGN_OR_RETURN(std::string name, expect_name());
    while (skip_operator(".")) {
      ASSIGN_OR_RETURN(const std::string part, expect_name());
      name += "." + part;
    }
    return name;
  }

  Result<ExprPtr> parse_filters(ExprPtr expr, bool starts_inline) {
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

  bool starts_test_argument() const {
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

  Result<ExprPtr> parse_test(ExprPtr operand) {
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

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace

Result<std::unique_ptr<TemplateTree>> parse_template(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace quire::jinja
