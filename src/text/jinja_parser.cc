// Recursive descent, one function a statement. Depth is counted on the way down and on the tree, as for the expressions
// (jinja_expression_parser.h), which the parser here derives from. See jinja_parser.h.
#include "text/jinja_parser.h"

#include <set>

#include "text/jinja_expression_parser.h"

namespace quire::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<std::unique_ptr<TemplateTree>> run();

 private:
  // ---- nodes ----
  StmtPtr make_statement(StmtKind kind, int line) const;

  // ---- statements ----
  // Up to "{% tag" of one of the end tags, which becomes the current token; or to the end of the template without any.
  Result<Body> parse_body(Names end_tags);
  // "%} body {% end tag"; with drops_end_tag the tag's name is consumed as well.
  Result<Body> parse_block_body(Names end_tags, bool drops_end_tag);
  Result<StmtPtr> finish_statement(StmtPtr stmt) const;
  Result<StmtPtr> parse_statement();
  Result<StmtPtr> parse_for();
  Result<StmtPtr> parse_if();
  Result<StmtPtr> parse_set();
  Status parse_signature(Stmt& stmt);
  Result<StmtPtr> parse_macro();
  Result<StmtPtr> parse_call_block();
  Result<StmtPtr> parse_generation();
  Result<StmtPtr> parse_block();
  Result<StmtPtr> parse_filter_block();
  Result<StmtPtr> parse_with();
  Result<StmtPtr> parse_print();

  // ---- targets of assignments ----
  static void set_use(Expr& target, NameUse use);
  Result<ExprPtr> parse_name_target();
  Status check_target(const Expr& target) const;
  Result<ExprPtr> parse_assign_target(bool allows_tuple, Names end_names, bool allows_namespace);
};

Result<std::unique_ptr<TemplateTree>> Parser::run() {
  auto tree = std::make_unique<TemplateTree>();
  ASSIGN_OR_RETURN(tree->body, parse_body({}));
  return tree;
}

// ---- nodes ----

StmtPtr Parser::make_statement(StmtKind kind, int line) const {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = line;
  return stmt;
}

// ---- statements ----

Result<Body> Parser::parse_body(Names end_tags) {
  const Nesting nesting(*this);
  RETURN_IF_ERROR(check_nesting());
  Body body;
  StmtPtr output;
  const auto flush = [&] {
    if (output) body.push_back(std::move(output));
    output = nullptr;
  };
  const auto add_output = [&](ExprPtr expr) {
    if (!output) output = make_statement(StmtKind::kOutput, expr->line);
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
      if (at_any_name(end_tags)) return body;
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

Result<Body> Parser::parse_block_body(Names end_tags, bool drops_end_tag) {
  skip_operator(":");
  RETURN_IF_ERROR(expect(TokenKind::kBlockEnd, "'%}'"));
  ASSIGN_OR_RETURN(Body body, parse_body(end_tags));
  if (drops_end_tag) next();
  return body;
}

Result<StmtPtr> Parser::finish_statement(StmtPtr stmt) const {
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

Result<StmtPtr> Parser::parse_statement() {
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
    return make_statement(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
  }
  for (const std::string_view refused : {"include", "import", "from", "extends", "autoescape"}) {
    if (tag == refused) {
      return unimplemented("line " + std::to_string(line) + ": {% " + tag +
                           " %} is not supported in chat templates, which are one file and not HTML");
    }
  }
  return error("encountered unknown tag '" + tag + "'", line);
}

Result<StmtPtr> Parser::parse_for() {
  StmtPtr stmt = make_statement(StmtKind::kFor, current().line);
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
  return finish_statement(std::move(stmt));
}

Result<StmtPtr> Parser::parse_if() {
  StmtPtr stmt = make_statement(StmtKind::kIf, current().line);
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
    return finish_statement(std::move(stmt));
  }
}

Result<StmtPtr> Parser::parse_set() {
  const int line = current().line;
  next();
  ASSIGN_OR_RETURN(ExprPtr target, parse_assign_target(true, {}, true));
  if (skip_operator("=")) {
    StmtPtr stmt = make_statement(StmtKind::kSet, line);
    ASSIGN_OR_RETURN(ExprPtr value, parse_tuple(true, {}, false));
    stmt->exprs.push_back(std::move(target));
    stmt->exprs.push_back(std::move(value));
    return finish_statement(std::move(stmt));
  }
  StmtPtr stmt = make_statement(StmtKind::kSetBlock, line);
  ExprPtr filter;
  if (current().is_operator("|")) {
    ASSIGN_OR_RETURN(filter, parse_filters(nullptr, false));
  }
  stmt->exprs.push_back(std::move(target));
  stmt->exprs.push_back(std::move(filter));
  ASSIGN_OR_RETURN(Body body, parse_block_body({"endset"}, true));
  stmt->bodies.push_back(std::move(body));
  return finish_statement(std::move(stmt));
}

Status Parser::parse_signature(Stmt& stmt) {
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

Result<StmtPtr> Parser::parse_macro() {
  StmtPtr stmt = make_statement(StmtKind::kMacro, current().line);
  next();
  ASSIGN_OR_RETURN(ExprPtr name, parse_name_target());
  stmt->name = name->name;
  RETURN_IF_ERROR(parse_signature(*stmt));
  ASSIGN_OR_RETURN(Body body, parse_block_body({"endmacro"}, true));
  stmt->bodies.push_back(std::move(body));
  return finish_statement(std::move(stmt));
}

Result<StmtPtr> Parser::parse_call_block() {
  StmtPtr stmt = make_statement(StmtKind::kCallBlock, current().line);
  next();
  if (current().is_operator("(")) RETURN_IF_ERROR(parse_signature(*stmt));
  ASSIGN_OR_RETURN(ExprPtr call, parse_expression());
  if (call->kind != ExprKind::kCall) return error("expected call", stmt->line);
  stmt->exprs.push_back(std::move(call));
  ASSIGN_OR_RETURN(Body body, parse_block_body({"endcall"}, true));
  stmt->bodies.push_back(std::move(body));
  return finish_statement(std::move(stmt));
}

Result<StmtPtr> Parser::parse_generation() {
  StmtPtr stmt = make_statement(StmtKind::kCallBlock, current().line);
  next();
  stmt->exprs.push_back(nullptr);
  ASSIGN_OR_RETURN(Body body, parse_block_body({"endgeneration"}, true));
  stmt->bodies.push_back(std::move(body));
  return finish_statement(std::move(stmt));
}

Result<StmtPtr> Parser::parse_block() {
  StmtPtr stmt = make_statement(StmtKind::kBlock, current().line);
  next();
  ASSIGN_OR_RETURN(stmt->name, expect_name());
  if (current().is_name("scoped") || current().is_name("required")) {
    return unimplemented("line " + std::to_string(stmt->line) +
                         ": a scoped or required block is not supported in chat templates");
  }
  ASSIGN_OR_RETURN(Body body, parse_block_body({"endblock"}, true));
  stmt->bodies.push_back(std::move(body));
  skip_name(stmt->name);
  return finish_statement(std::move(stmt));
}

Result<StmtPtr> Parser::parse_filter_block() {
  StmtPtr stmt = make_statement(StmtKind::kFilterBlock, current().line);
  next();
  ASSIGN_OR_RETURN(ExprPtr filter, parse_filters(nullptr, true));
  stmt->exprs.push_back(std::move(filter));
  ASSIGN_OR_RETURN(Body body, parse_block_body({"endfilter"}, true));
  stmt->bodies.push_back(std::move(body));
  return finish_statement(std::move(stmt));
}

Result<StmtPtr> Parser::parse_with() {
  StmtPtr stmt = make_statement(StmtKind::kWith, current().line);
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
  return finish_statement(std::move(stmt));
}

Result<StmtPtr> Parser::parse_print() {
  StmtPtr stmt = make_statement(StmtKind::kOutput, current().line);
  next();
  while (current().kind != TokenKind::kBlockEnd) {
    if (!stmt->exprs.empty()) RETURN_IF_ERROR(expect_operator(","));
    ASSIGN_OR_RETURN(ExprPtr expr, parse_expression());
    stmt->exprs.push_back(std::move(expr));
  }
  return finish_statement(std::move(stmt));
}

// ---- targets of assignments ----

void Parser::set_use(Expr& target, NameUse use) {
  target.use = use;
  for (const ExprPtr& child : target.children) set_use(*child, use);
}

Result<ExprPtr> Parser::parse_name_target() {
  const int line = current().line;
  ExprPtr expr = make(ExprKind::kName, line);
  ASSIGN_OR_RETURN(expr->name, expect_name());
  expr->use = NameUse::kStore;
  RETURN_IF_ERROR(check_target(*expr));
  return expr;
}

Status Parser::check_target(const Expr& target) const {
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

Result<ExprPtr> Parser::parse_assign_target(bool allows_tuple, Names end_names, bool allows_namespace) {
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

}  // namespace

Result<std::unique_ptr<TemplateTree>> parse_template(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace quire::jinja
