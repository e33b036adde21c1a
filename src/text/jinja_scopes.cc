// Two walks, as jinja2's compiler does them. `Analysis` walks one scope and notes which names it loads and stores,
// stopping at inner scopes; `Resolver` then walks the scope again, gives every name its slot and opens the inner ones.
// A macro, a call block and a recursive loop are functions with a frame of their own; the other scopes share the frame.
#include "text/jinja_scopes.h"

#include <deque>
#include <map>
#include <set>

namespace quire::jinja {
namespace {

struct Function {
  int depth = 0;
  std::map<std::string, int> slots;  // "level name" → slot

  int slot_of(int level, const std::string& name, int variant) {
    return slots
        .emplace(std::to_string(level) + "." + std::to_string(variant) + " " + name, static_cast<int>(slots.size()))
        .first->second;
  }
};

struct Target {
  Function* function = nullptr;
  int slot = -1;
  bool operator==(const Target&) const = default;
};

struct Load {
  VariableLoad::Action action;
  std::string name;
  Target source;
};

// The names of one scope.
struct Symbols {
  const Symbols* parent = nullptr;
  Function* function = nullptr;
  int level = 0;
  int variant = 0;  // not 0 for the test of a loop, whose variables are apart from those of its body
  std::map<std::string, Target> refs;
  std::vector<std::pair<Target, Load>> loads;
  std::map<int, size_t> load_of_slot;  // index into loads
  std::set<std::string> stores;

  const Target* find_ref(const std::string& name) const {
    for (const Symbols* scope = this; scope != nullptr; scope = scope->parent) {
      const auto it = scope->refs.find(name);
      if (it != scope->refs.end()) return &it->second;
    }
    return nullptr;
  }

  void set_load(const Target& target, Load load) {
    const auto [it, is_new] = load_of_slot.emplace(target.slot, loads.size());
    if (is_new) {
      loads.emplace_back(target, std::move(load));
    } else {
      loads[it->second].second = std::move(load);
    }
  }

  void define(const std::string& name, Load load) {
    const Target target = {function, function->slot_of(level, name, variant)};
    refs[name] = target;
    set_load(target, std::move(load));
  }

  void store(const std::string& name) {
    stores.insert(name);
    if (refs.contains(name)) return;
    const Target* outer = parent != nullptr ? parent->find_ref(name) : nullptr;
    if (outer != nullptr) {
      define(name, {VariableLoad::Action::kAlias, "", *outer});
    } else {
      define(name, {VariableLoad::Action::kUndefined, "", {}});
    }
  }

  void declare_parameter(const std::string& name) {
    stores.insert(name);
    define(name, {VariableLoad::Action::kParameter, "", {}});
  }

  void load(const std::string& name) {
    if (find_ref(name) == nullptr) define(name, {VariableLoad::Action::kResolve, name, {}});
  }

  // After an if: what any branch may have stored was, before it, the outer variable or an input.
  void merge_branches(const std::vector<Symbols>& branches) {
    std::set<std::string> branch_stores;
    for (const Symbols& branch : branches) branch_stores.insert(branch.stores.begin(), branch.stores.end());
    for (const std::string& name : stores) branch_stores.erase(name);
    for (const Symbols& branch : branches) {
      for (const auto& [name, target] : branch.refs) refs[name] = target;
      for (const auto& [target, branch_load] : branch.loads) set_load(target, branch_load);
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string& name : branch_stores) {
      const Target target = *find_ref(name);
      const Target* outer = parent != nullptr ? parent->find_ref(name) : nullptr;
      if (outer != nullptr) {
        set_load(target, {VariableLoad::Action::kAlias, "", *outer});
      } else {
        set_load(target, {VariableLoad::Action::kResolve, name, {}});
      }
    }
  }
};

// Branches copy the names known so far; this bounds that work for hostile templates.
constexpr size_t kMaxAnalysisWork = 2'000'000;

class Analysis {
 public:
  Analysis(Symbols& symbols, size_t& work) : symbols_(&symbols), work_(work) {}

  void visit(const Expr* expr, bool stores_as_parameter = false) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kName) {
      if (stores_as_parameter || expr->use == NameUse::kParameter) {
        symbols_->declare_parameter(expr->name);
      } else if (expr->use == NameUse::kStore) {
        symbols_->store(expr->name);
      } else {
        symbols_->load(expr->name);
      }
      return;
    }
    if (expr->kind == ExprKind::kNamespaceRef) symbols_->load(expr->name);
    for (const ExprPtr& child : expr->children) visit(child.get(), stores_as_parameter);
    for (const ExprPtr& child : expr->arguments.positional) visit(child.get());
    for (const auto& [name, child] : expr->arguments.named) visit(child.get());
    visit(expr->arguments.star.get());
    visit(expr->arguments.double_star.get());
  }

  void visit(const Body& body) {
    for (const StmtPtr& stmt : body) visit(*stmt);
  }

  void visit(const Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::kOutput:
        for (const ExprPtr& expr : stmt.exprs) visit(expr.get());
        return;
      case StmtKind::kIf:
        return visit_if(stmt);
      case StmtKind::kFor:
        return visit(stmt.exprs[1].get());
      case StmtKind::kSet:
        visit(stmt.exprs[1].get());
        return visit(stmt.exprs[0].get());
      case StmtKind::kSetBlock:
        return visit(stmt.exprs[0].get());
      case StmtKind::kMacro:
        return symbols_->store(stmt.name);
      case StmtKind::kCallBlock:
      case StmtKind::kFilterBlock:
        return visit(stmt.exprs[0].get());
      case StmtKind::kWith:
        for (size_t i = stmt.exprs.size() / 2; i < stmt.exprs.size(); ++i) visit(stmt.exprs[i].get());
        return;
      case StmtKind::kBlock:
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
    }
  }

 private:
  void visit_if(const Stmt& stmt) {
    // "elif" nests in jinja2's tree as an if of its own whose branches are merged first; the branches here are the body
    // of the first test, each elif (test and body together), and the else.
    Symbols* const original = symbols_;
    visit(stmt.exprs[0].get());
    std::vector<Symbols> branches;
    work_ += 4 * stmt.exprs.size() * (original->refs.size() + original->loads.size() + 1);
    if (work_ > kMaxAnalysisWork) return;  // the resolver reports it
    const auto visit_branch = [&](auto visit_contents) {
      Symbols branch = *original;
      symbols_ = &branch;
      visit_contents();
      symbols_ = original;
      return branch;
    };
    branches.push_back(visit_branch([&] { visit(stmt.bodies[0]); }));
    // All elifs share one copy, as one sequence of inner ifs.
    branches.push_back(visit_branch([&] {
      for (size_t i = 1; i < stmt.exprs.size(); ++i) {
        visit(stmt.exprs[i].get());
        Symbols* const before = symbols_;
        Symbols inner = *before;
        symbols_ = &inner;
        visit(stmt.bodies[i]);
        symbols_ = before;
        before->merge_branches({inner});
      }
    }));
    branches.push_back(visit_branch([&] {
      if (stmt.bodies.size() > stmt.exprs.size()) visit(stmt.bodies.back());
    }));
    original->merge_branches(branches);
  }

  Symbols* symbols_;
  size_t& work_;
};

// Which of some names a body reads before anything in it stores them, inner scopes and macros included.
class UndeclaredFinder {
 public:
  explicit UndeclaredFinder(std::set<std::string> names) : names_(std::move(names)) {}
  const std::set<std::string>& found() const { return found_; }

  void visit(const Body& body) {
    for (const StmtPtr& stmt : body) visit(*stmt);
  }

 private:
  void visit(const Stmt& stmt) {
    if (stmt.kind == StmtKind::kBlock) return;
    if (stmt.kind == StmtKind::kSet) {
      visit(stmt.exprs[0].get());
      visit(stmt.exprs[1].get());
      return;
    }
    if (stmt.kind == StmtKind::kIf) {
      for (size_t i = 0; i < stmt.bodies.size(); ++i) {
        if (i < stmt.exprs.size()) visit(stmt.exprs[i].get());
        visit(stmt.bodies[i]);
      }
      return;
    }
    if (stmt.kind == StmtKind::kFor) {
      visit(stmt.exprs[0].get());
      visit(stmt.exprs[1].get());
      for (const Body& body : stmt.bodies) visit(body);
      visit(stmt.exprs[2].get());
      return;
    }
    for (const ExprPtr& expr : stmt.exprs) visit(expr.get());
    for (const ExprPtr& expr : stmt.parameters) visit(expr.get());
    for (const ExprPtr& expr : stmt.defaults) visit(expr.get());
    for (const Body& body : stmt.bodies) visit(body);
  }

  void visit(const Expr* expr) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kName) {
      if (expr->use == NameUse::kLoad && names_.contains(expr->name)) {
        found_.insert(expr->name);
      } else {
        names_.erase(expr->name);
      }
      return;
    }
    for (const ExprPtr& child : expr->children) visit(child.get());
    for (const ExprPtr& child : expr->arguments.positional) visit(child.get());
    for (const auto& [name, child] : expr->arguments.named) visit(child.get());
    visit(expr->arguments.star.get());
    visit(expr->arguments.double_star.get());
  }

  std::set<std::string> names_;
  std::set<std::string> found_;
};

bool stores_loop(const Expr* expr) {
  if (expr == nullptr) return false;
  if (expr->kind == ExprKind::kName) return expr->use == NameUse::kStore && expr->name == "loop";
  for (const ExprPtr& child : expr->children) {
    if (stores_loop(child.get())) return true;
  }
  return false;
}

bool stores_loop(const Body& body) {
  for (const StmtPtr& stmt : body) {
    for (const ExprPtr& expr : stmt->exprs) {
      if (stores_loop(expr.get())) return true;
    }
    for (const Body& inner : stmt->bodies) {
      if (stores_loop(inner)) return true;
    }
  }
  return false;
}

ExprPtr clone_target(const Expr& target) {
  auto copy = std::make_unique<Expr>();
  copy->kind = target.kind;
  copy->line = target.line;
  copy->name = target.name;
  copy->use = target.use;
  for (const ExprPtr& child : target.children) copy->children.push_back(clone_target(*child));
  return copy;
}

struct Frame {
  Symbols* symbols;
  bool is_soft = false;     // inside an if: an unknown filter is an error only when it is reached
  bool is_in_loop = false;  // break and continue have a loop in this function
};

class Resolver {
 public:
  Status run(TemplateTree& tree) {
    Function& function = add_function(0);
    Symbols& symbols = add_symbols(nullptr, &function);
    Analysis(symbols, work_).visit(tree.body);
    RETURN_IF_ERROR(check_work());
    RETURN_IF_ERROR(resolve(tree.body, {&symbols}));
    tree.scope = finish_scope(symbols);
    for (const std::string& name : symbols.stores) tree.top_level.emplace(name, symbols.refs.at(name).slot);
    tree.num_slots = static_cast<int>(function.slots.size());
    return ok_status();
  }

 private:
  Function& add_function(int depth) {
    functions_.emplace_back();
    functions_.back().depth = depth;
    return functions_.back();
  }

  Symbols& add_symbols(const Symbols* parent, Function* function) {
    symbols_.emplace_back();
    Symbols& symbols = symbols_.back();
    symbols.parent = parent;
    symbols.function = function;
    symbols.level = parent != nullptr ? parent->level + 1 : 0;
    return symbols;
  }

  static VariableRef relative(const Target& target, const Function& function) {
    return {function.depth - target.function->depth, target.slot};
  }

  static Scope finish_scope(const Symbols& symbols) {
    Scope scope;
    for (const auto& [target, load] : symbols.loads) {
      VariableLoad entry = {load.action, relative(target, *symbols.function), load.name, {}};
      if (load.action == VariableLoad::Action::kAlias) entry.source = relative(load.source, *symbols.function);
      scope.loads.push_back(std::move(entry));
    }
    return scope;
  }

  Status resolve_name(const std::string& name, int line, const Frame& frame, VariableRef& variable) {
    RETURN_IF_ERROR(check_work());
    const Target* target = frame.symbols->find_ref(name);
    if (target == nullptr) {
      return invalid_argument("line " + std::to_string(line) + ": '" + name +
                              "' cannot be used here; set it to a variable first");
    }
    variable = relative(*target, *frame.symbols->function);
    return ok_status();
  }

  Status resolve(Expr* expr, Frame frame) {
    if (expr == nullptr) return ok_status();
    switch (expr->kind) {
      case ExprKind::kName:
      case ExprKind::kNamespaceRef:
        return resolve_name(expr->name, expr->line, frame, expr->variable);
      case ExprKind::kFilter:
        expr->filter = find_filter(expr->name);
        if (expr->filter == nullptr && !frame.is_soft) {
          return invalid_argument("line " + std::to_string(expr->line) + ": No filter named '" + expr->name + "'.");
        }
        break;
      case ExprKind::kTest:
        expr->test = find_test(expr->name);
        if (expr->test == nullptr && !frame.is_soft) {
          return invalid_argument("line " + std::to_string(expr->line) + ": No test named '" + expr->name + "'.");
        }
        break;
      case ExprKind::kCondition:
        frame.is_soft = true;
        break;
      default:
        break;
    }
    for (const ExprPtr& child : expr->children) RETURN_IF_ERROR(resolve(child.get(), frame));
    for (const ExprPtr& child : expr->arguments.positional) RETURN_IF_ERROR(resolve(child.get(), frame));
    for (const auto& [name, child] : expr->arguments.named) RETURN_IF_ERROR(resolve(child.get(), frame));
    RETURN_IF_ERROR(resolve(expr->arguments.star.get(), frame));
    return resolve(expr->arguments.double_star.get(), frame);
  }

  Status resolve(const Body& body, const Frame& frame) {
    for (const StmtPtr& stmt : body) RETURN_IF_ERROR(resolve(*stmt, frame));
    return ok_status();
  }

  Status check_work() const {
    if (work_ > kMaxAnalysisWork) return resource_exhausted("the template has too many branches and variables");
    return ok_status();
  }

  Status resolve(Stmt& stmt, const Frame& frame) {
    RETURN_IF_ERROR(check_work());
    switch (stmt.kind) {
      case StmtKind::kOutput:
      case StmtKind::kSet:
        for (const ExprPtr& expr : stmt.exprs) RETURN_IF_ERROR(resolve(expr.get(), frame));
        return ok_status();
      case StmtKind::kIf: {
        Frame soft = frame;
        soft.is_soft = true;
        for (const ExprPtr& expr : stmt.exprs) RETURN_IF_ERROR(resolve(expr.get(), soft));
        for (const Body& body : stmt.bodies) RETURN_IF_ERROR(resolve(body, soft));
        return ok_status();
      }
      case StmtKind::kFor:
        return resolve_for(stmt, frame);
      case StmtKind::kSetBlock:
      case StmtKind::kFilterBlock: {
        const bool is_set = stmt.kind == StmtKind::kSetBlock;
        Symbols& symbols = add_symbols(frame.symbols, frame.symbols->function);
        Analysis analysis(symbols, work_);
        analysis.visit(stmt.bodies[0]);
        if (!is_set) analysis.visit(stmt.exprs[0].get());
        const Frame inner = {&symbols, false, frame.is_in_loop};
        RETURN_IF_ERROR(resolve(stmt.bodies[0], inner));
        if (is_set) RETURN_IF_ERROR(resolve(stmt.exprs[0].get(), frame));
        RETURN_IF_ERROR(resolve(stmt.exprs.back().get(), inner));
        stmt.scope = finish_scope(symbols);
        return ok_status();
      }
      case StmtKind::kMacro:
        RETURN_IF_ERROR(resolve_macro(stmt, frame));
        return resolve_name(stmt.name, stmt.line, frame, stmt.variable);
      case StmtKind::kCallBlock:
        RETURN_IF_ERROR(resolve_macro(stmt, frame));
        return resolve(stmt.exprs[0].get(), frame);
      case StmtKind::kWith: {
        Symbols& symbols = add_symbols(frame.symbols, frame.symbols->function);
        Analysis analysis(symbols, work_);
        const size_t num_targets = stmt.exprs.size() / 2;
        for (size_t i = 0; i < num_targets; ++i) analysis.visit(stmt.exprs[i].get());
        analysis.visit(stmt.bodies[0]);
        const Frame inner = {&symbols, false, frame.is_in_loop};
        for (size_t i = 0; i < stmt.exprs.size(); ++i) {
          RETURN_IF_ERROR(resolve(stmt.exprs[i].get(), i < num_targets ? inner : frame));
        }
        RETURN_IF_ERROR(resolve(stmt.bodies[0], inner));
        stmt.scope = finish_scope(symbols);
        return ok_status();
      }
      case StmtKind::kBlock: {
        if (!blocks_.insert(stmt.name).second) {
          return invalid_argument("line " + std::to_string(stmt.line) + ": block '" + stmt.name + "' defined twice");
        }
        Function& function = add_function(0);
        Symbols& symbols = add_symbols(nullptr, &function);
        Analysis(symbols, work_).visit(stmt.bodies[0]);
        RETURN_IF_ERROR(resolve(stmt.bodies[0], {&symbols}));
        stmt.scope = finish_scope(symbols);
        stmt.num_slots = static_cast<int>(function.slots.size());
        return ok_status();
      }
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        if (frame.is_in_loop) return ok_status();
        return invalid_argument("line " + std::to_string(stmt.line) + ": " +
                                (stmt.kind == StmtKind::kBreak ? "break" : "continue") + " outside of a loop");
    }
    return ok_status();
  }

  Status resolve_for(Stmt& stmt, const Frame& frame) {
    if (stores_loop(stmt.exprs[0].get()) || stores_loop(stmt.bodies[0]) || stores_loop(stmt.bodies[1])) {
      return invalid_argument("line " + std::to_string(stmt.line) +
                              ": Can't assign to special loop variable in for-loop target");
    }
    Function* function = frame.symbols->function;
    if (stmt.is_recursive) function = &add_function(function->depth + 1);
    Symbols& body = add_symbols(frame.symbols, function);
    UndeclaredFinder finder({"loop"});
    finder.visit(stmt.bodies[0]);
    stmt.has_loop_variable = stmt.is_recursive || !finder.found().empty();
    if (stmt.has_loop_variable) body.declare_parameter("loop");
    Analysis body_analysis(body, work_);
    body_analysis.visit(stmt.exprs[0].get(), true);
    body_analysis.visit(stmt.bodies[0]);

    Symbols& otherwise = add_symbols(frame.symbols, function);
    Analysis(otherwise, work_).visit(stmt.bodies[1]);

    RETURN_IF_ERROR(resolve(stmt.exprs[1].get(), frame));
    if (stmt.exprs[2]) {
      Symbols& test = add_symbols(frame.symbols, function);
      test.variant = ++num_variants_;
      Analysis test_analysis(test, work_);
      test_analysis.visit(stmt.exprs[0].get(), true);
      test_analysis.visit(stmt.exprs[2].get());
      stmt.test_target = clone_target(*stmt.exprs[0]);
      RETURN_IF_ERROR(resolve(stmt.test_target.get(), {&test}));
      RETURN_IF_ERROR(resolve(stmt.exprs[2].get(), {&test}));
      stmt.test_scope = finish_scope(test);
    }
    const Frame body_frame = {&body, false, true};
    RETURN_IF_ERROR(resolve(stmt.exprs[0].get(), body_frame));
    if (stmt.has_loop_variable) RETURN_IF_ERROR(resolve_name("loop", stmt.line, body_frame, stmt.variable));
    RETURN_IF_ERROR(resolve(stmt.bodies[0], body_frame));
    stmt.scope = finish_scope(body);
    RETURN_IF_ERROR(resolve(stmt.bodies[1], {&otherwise, false, frame.is_in_loop && !stmt.is_recursive}));
    stmt.else_scope = finish_scope(otherwise);
    if (stmt.is_recursive) stmt.num_slots = static_cast<int>(function->slots.size());
    return ok_status();
  }

  Status resolve_macro(Stmt& stmt, const Frame& frame) {
    Function& function = add_function(frame.symbols->function->depth + 1);
    Symbols& symbols = add_symbols(frame.symbols, &function);
    UndeclaredFinder finder({"caller", "kwargs", "varargs"});
    finder.visit(stmt.bodies[0]);
    std::set<std::string> specials = finder.found();
    for (size_t i = 0; i < stmt.parameters.size(); ++i) {
      const std::string& name = stmt.parameters[i]->name;
      if (name == "caller") {
        stmt.has_explicit_caller = true;
        const bool has_default = i + stmt.defaults.size() >= stmt.parameters.size();
        if (specials.contains(name) && !has_default) {
          return invalid_argument("line " + std::to_string(stmt.line) +
                                  ": When defining macros or call blocks the special \"caller\" argument must be "
                                  "omitted or be given a default.");
        }
      }
      specials.erase(name);
    }
    Analysis analysis(symbols, work_);
    for (const ExprPtr& parameter : stmt.parameters) analysis.visit(parameter.get());
    for (const ExprPtr& value : stmt.defaults) analysis.visit(value.get());
    analysis.visit(stmt.bodies[0]);
    const Frame inner = {&symbols};
    for (const auto& [name, variable] :
         {std::pair{"caller", &stmt.caller}, {"kwargs", &stmt.kwargs}, {"varargs", &stmt.varargs}}) {
      if (!specials.contains(name)) continue;
      symbols.declare_parameter(name);
      RETURN_IF_ERROR(resolve_name(name, stmt.line, inner, *variable));
    }
    for (const ExprPtr& parameter : stmt.parameters) RETURN_IF_ERROR(resolve(parameter.get(), inner));
    for (const ExprPtr& value : stmt.defaults) RETURN_IF_ERROR(resolve(value.get(), inner));
    RETURN_IF_ERROR(resolve(stmt.bodies[0], inner));
    stmt.scope = finish_scope(symbols);
    stmt.num_slots = static_cast<int>(function.slots.size());
    return ok_status();
  }

  std::deque<Function> functions_;  // stable addresses
  std::deque<Symbols> symbols_;
  std::set<std::string> blocks_;
  int num_variants_ = 0;
  size_t work_ = 0;
};

}  // namespace

Status resolve_scopes(TemplateTree& tree) {
  return Resolver().run(tree);
}

}  // namespace quire::jinja
