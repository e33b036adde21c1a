// Statements write to the current output; expressions give values. Variables live in frames, one a call of a macro or
// of a recursive loop, at the slots that jinja_scopes chose. See jinja_interpreter.h.
#include "text/jinja_interpreter.h"

#include "text/jinja_attributes.h"
#include "text/jinja_filters.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"

namespace quire::jinja {
namespace {

struct Frame {
  std::vector<Value> slots;
  std::shared_ptr<Frame> parent;
  bool is_captured = false;  // a macro may outlive the call; the interpreter empties such frames at the end
};

struct MacroObject : Object {
  const Stmt* stmt = nullptr;
  std::shared_ptr<Frame> frame;  // where it was defined
};

// The variable `loop`, and the cursor of the loop itself.
struct LoopObject : Object {
  const Stmt* stmt = nullptr;
  std::shared_ptr<Frame> defining_frame;  // of a recursive loop: the frame around the function
  Frame* frame = nullptr;                 // the frame the loop runs in; null once it has ended
  Value iterable;
  std::optional<ValueIterator> source;
  int64_t index0 = -1;
  int64_t depth0 = 0;
  std::optional<int64_t> length;
  bool is_tested = false;  // what is left in source has passed the test already
  std::optional<Value> after;
  Value current, before;
  std::optional<Value> last_changed;
};

enum class Flow { kNormal, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const TemplateTree& tree, Runtime& runtime, int max_depth,
              const std::unordered_map<std::string_view, Value>& variables)
      : tree_(tree), runtime_(runtime), max_depth_(max_depth), variables_(variables) {}
  ~Interpreter() {
    for (const auto& frame : captured_frames_) frame->slots.clear();
    runtime_.release_namespaces();
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<Text> run() {
    Text out;
    out_ = &out;
    root_ = frame_ = make_frame(tree_.num_slots, nullptr);
    enter(tree_.scope);
    const Status status = execute(tree_.body);
    if (!status.is_ok()) {
      if (error_line_ == 0) return status;
      return Status(status.code(), "line " + std::to_string(error_line_) + ": " + status.message());
    }
    return out;
  }

 private:
  // ---- frames and variables ----
  static std::shared_ptr<Frame> make_frame(int num_slots, std::shared_ptr<Frame> parent) {
    auto frame = std::make_shared<Frame>();
    frame->slots.resize(static_cast<size_t>(num_slots));
    frame->parent = std::move(parent);
    return frame;
  }

  Value& slot(const VariableRef& variable) {
    Frame* frame = frame_.get();
    for (int i = 0; i < variable.hops; ++i) frame = frame->parent.get();
    return frame->slots[static_cast<size_t>(variable.slot)];
  }

  Value resolve(const std::string& name) {
    // Blocks have no scope around them: they see what the top level has set so far, and the inputs.
    if (const auto top = tree_.top_level.find(name); top != tree_.top_level.end()) {
      const Value& value = root_->slots[static_cast<size_t>(top->second)];
      if (!value.is_missing()) return value;
    }
    const auto it = variables_.find(name);
    if (it != variables_.end()) return it->second;
    if (!is_global(name)) return Value::missing();
    auto object = runtime_.make_object<GlobalObject>();
    object->name = name;
    return Value::from_object(Kind::kGlobal, std::move(object));
  }

  void enter(const Scope& scope) {
    for (const VariableLoad& load : scope.loads) {
      switch (load.action) {
        case VariableLoad::Action::kParameter:
          break;
        case VariableLoad::Action::kResolve:
          slot(load.target) = resolve(load.name);
          break;
        case VariableLoad::Action::kAlias:
          slot(load.target) = slot(load.source);
          break;
        case VariableLoad::Action::kUndefined:
          slot(load.target) = Value::missing();
          break;
      }
    }
  }

  void leave(const Scope& scope) {
    for (const VariableLoad& load : scope.loads) slot(load.target) = Value::missing();
  }

  void capture_frame() {
    if (frame_->is_captured) return;
    frame_->is_captured = true;
    captured_frames_.push_back(frame_);
    runtime_.meter().charge(sizeof(Frame) + frame_->slots.size() * sizeof(Value));  // kept to the end: never refunded
  }

  class Nesting {
   public:
    explicit Nesting(Interpreter& interpreter) : interpreter_(interpreter) { ++interpreter_.depth_; }
    ~Nesting() { --interpreter_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Interpreter& interpreter_;
  };
  Status check_depth() const {
    if (depth_ > max_depth_) {
      return resource_exhausted("the chat template recurses deeper than " + std::to_string(max_depth_) + " levels");
    }
    return ok_status();
  }

  // The innermost line is told; an error that was met again on the way out keeps it.
  Status at_line(int line, Status status) {
    if (error_line_ == 0) error_line_ = line;
    return status;
  }

  // ---- statements ----
  Status execute(const Body& body) {
    for (const StmtPtr& stmt : body) {
      Status status = execute(*stmt);
      if (!status.is_ok()) return at_line(stmt->line, std::move(status));
      if (flow_ != Flow::kNormal) break;
    }
    return ok_status();
  }

  Status execute(const Stmt& stmt) {
    const Nesting nesting(*this);
    RETURN_IF_ERROR(check_depth());
    RETURN_IF_ERROR(runtime_.step());
    switch (stmt.kind) {
      case StmtKind::kOutput:
        return execute_output(stmt);
      case StmtKind::kIf:
        return execute_if(stmt);
      case StmtKind::kFor:
        return execute_for(stmt);
      case StmtKind::kSet: {
        RETURN_IF_ERROR(check_namespaces(*stmt.exprs[0]));
        ASSIGN_OR_RETURN(Value value, evaluate(*stmt.exprs[1]));
        return assign(*stmt.exprs[0], std::move(value));
      }
      case StmtKind::kSetBlock:
        return execute_set_block(stmt);
      case StmtKind::kMacro:
        slot(stmt.variable) = make_macro(stmt);
        return ok_status();
      case StmtKind::kCallBlock:
        return execute_call_block(stmt);
      case StmtKind::kFilterBlock: {
        enter(stmt.scope);
        ASSIGN_OR_RETURN(Text text, capture(stmt.bodies[0]));
        if (flow_ != Flow::kNormal) return ok_status();
        ASSIGN_OR_RETURN(const Value value, apply_filters(*stmt.exprs[0], runtime_.make_string(std::move(text))));
        RETURN_IF_ERROR(append_block_result(value));
        leave(stmt.scope);
        return ok_status();
      }
      case StmtKind::kWith: {
        enter(stmt.scope);
        const size_t num_targets = stmt.exprs.size() / 2;
        for (size_t i = 0; i < num_targets; ++i) {
          ASSIGN_OR_RETURN(Value value, evaluate(*stmt.exprs[num_targets + i]));
          RETURN_IF_ERROR(assign(*stmt.exprs[i], std::move(value)));
        }
        RETURN_IF_ERROR(execute(stmt.bodies[0]));
        leave(stmt.scope);
        return ok_status();
      }
      case StmtKind::kBlock: {
        std::shared_ptr<Frame> outer = std::exchange(frame_, make_frame(stmt.num_slots, nullptr));
        enter(stmt.scope);
        const Status status = execute(stmt.bodies[0]);
        frame_ = std::move(outer);
        return status;
      }
      case StmtKind::kBreak:
        flow_ = Flow::kBreak;
        return ok_status();
      case StmtKind::kContinue:
        flow_ = Flow::kContinue;
        return ok_status();
    }
    return ok_status();
  }

  Status execute_output(const Stmt& stmt) {
    for (const ExprPtr& expr : stmt.exprs) {
      ASSIGN_OR_RETURN(const Value value, evaluate(*expr));
      Status status = append_str(runtime_, *out_, value);
      if (!status.is_ok()) return at_line(expr->line, std::move(status));
    }
    return ok_status();
  }

  Status execute_if(const Stmt& stmt) {
    for (size_t i = 0; i < stmt.exprs.size(); ++i) {
      ASSIGN_OR_RETURN(const Value test, evaluate(*stmt.exprs[i]));
      if (is_true(test)) return execute(stmt.bodies[i]);
    }
    return stmt.bodies.size() > stmt.exprs.size() ? execute(stmt.bodies.back()) : ok_status();
  }

  Result<Text> capture(const Body& body) {
    Text text;
    Text* const outer = std::exchange(out_, &text);
    const Status status = execute(body);
    out_ = outer;
    if (!status.is_ok()) return status;
    return text;
  }

  Status execute_set_block(const Stmt& stmt) {
    enter(stmt.scope);
    ASSIGN_OR_RETURN(Text text, capture(stmt.bodies[0]));
    if (flow_ != Flow::kNormal) return ok_status();
    Value value = runtime_.make_string(std::move(text));
    if (stmt.exprs[1]) {
      ASSIGN_OR_RETURN(value, apply_filters(*stmt.exprs[1], value));
    }
    RETURN_IF_ERROR(assign(*stmt.exprs[0], std::move(value)));
    leave(stmt.scope);
    return ok_status();
  }

  // A set on something else than a namespace fails before its value is computed.
  Status check_namespaces(const Expr& target) {
    if (target.kind == ExprKind::kNamespaceRef && slot(target.variable).kind() != Kind::kNamespace) {
      return invalid_argument("cannot assign attribute on non-namespace object");
    }
    if (target.kind == ExprKind::kTuple) {
      for (const ExprPtr& child : target.children) RETURN_IF_ERROR(check_namespaces(*child));
    }
    return ok_status();
  }

  Status assign(const Expr& target, Value value) {
    if (target.kind == ExprKind::kName) {
      slot(target.variable) = std::move(value);
      return ok_status();
    }
    if (target.kind == ExprKind::kNamespaceRef) {
      const Value object = slot(target.variable);
      if (object.kind() != Kind::kNamespace) return invalid_argument("cannot assign attribute on non-namespace object");
      if (target.attribute.starts_with('_')) {
        return invalid_argument("a namespace cannot store the underscore-prefixed attribute '" + target.attribute +
                                "'");
      }
      auto& attributes = object.as<NamespaceObject>().attributes;
      for (auto& [name, existing] : attributes) {
        if (name == target.attribute) {
          existing = std::move(value);
          return ok_status();
        }
      }
      attributes.emplace_back(target.attribute, std::move(value));
      return ok_status();
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime_, value));
    const size_t num_targets = target.children.size();
    if (items.size() > num_targets) {
      return invalid_argument("too many values to unpack (expected " + std::to_string(num_targets) + ")");
    }
    if (items.size() < num_targets) {
      return invalid_argument("not enough values to unpack (expected " + std::to_string(num_targets) + ", got " +
                              std::to_string(items.size()) + ")");
    }
    for (size_t i = 0; i < num_targets; ++i) RETURN_IF_ERROR(assign(*target.children[i], items[i]));
    return ok_status();
  }

  // ---- loops ----
  Status execute_for(const Stmt& stmt) {
    ASSIGN_OR_RETURN(Value iterable, evaluate(*stmt.exprs[1]));
    if (!stmt.is_recursive) return run_loop(stmt, std::move(iterable), 0, nullptr);
    ASSIGN_OR_RETURN(const Text text, run_recursive_loop(stmt, std::move(iterable), 0, frame_));
    RETURN_IF_ERROR(runtime_.check_string_size(out_->size() + text.size()));
    out_->append(text);
    return ok_status();
  }

  Result<Text> run_recursive_loop(const Stmt& stmt, Value iterable, int64_t depth0,
                                  std::shared_ptr<Frame> defining_frame) {
    const Nesting nesting(*this);
    RETURN_IF_ERROR(check_depth());
    Text text;
    Text* const outer_out = std::exchange(out_, &text);
    std::shared_ptr<Frame> outer_frame = std::exchange(frame_, make_frame(stmt.num_slots, defining_frame));
    const Status status = run_loop(stmt, std::move(iterable), depth0, std::move(defining_frame));
    frame_ = std::move(outer_frame);
    out_ = outer_out;
    if (!status.is_ok()) return status;
    return text;
  }

  Status run_loop(const Stmt& stmt, Value iterable, int64_t depth0, std::shared_ptr<Frame> defining_frame) {
    auto loop = runtime_.make_object<LoopObject>();
    loop->stmt = &stmt;
    loop->defining_frame = std::move(defining_frame);
    loop->frame = frame_.get();
    loop->depth0 = depth0;
    loop->iterable = std::move(iterable);
    ASSIGN_OR_RETURN(loop->source, ValueIterator::over(loop->iterable));
    const Status status = run_iterations(stmt, loop);
    // What the loop held goes now: a template may keep the loop object, but not chains of them.
    loop->frame = nullptr;
    loop->source.reset();
    loop->iterable = loop->current = loop->before = Value::missing();
    loop->after.reset();
    loop->last_changed.reset();
    loop->defining_frame.reset();
    return status;
  }

  Status run_iterations(const Stmt& stmt, const std::shared_ptr<LoopObject>& loop) {
    bool has_finished_one = false;
    if (stmt.exprs[2]) enter(stmt.test_scope);
    for (;;) {
      Value item;
      ASSIGN_OR_RETURN(const bool has_item, advance(*loop, &item));
      if (!has_item) break;
      RETURN_IF_ERROR(assign(*stmt.exprs[0], std::move(item)));
      if (stmt.has_loop_variable) slot(stmt.variable) = Value::from_object(Kind::kLoop, loop);
      enter(stmt.scope);
      RETURN_IF_ERROR(execute(stmt.bodies[0]));
      const Flow flow = std::exchange(flow_, Flow::kNormal);
      if (flow == Flow::kBreak) break;
      if (flow == Flow::kNormal) has_finished_one = true;
    }
    leave(stmt.scope);
    // As in jinja2, an iteration that was cut short by continue or break does not count.
    if (has_finished_one || stmt.bodies[1].empty()) return ok_status();
    enter(stmt.else_scope);
    RETURN_IF_ERROR(execute(stmt.bodies[1]));
    leave(stmt.else_scope);
    return ok_status();
  }

  // The next item that passes the loop's test.
  Result<bool> pull(LoopObject& loop, Value* item) {
    if (!loop.source) return false;
    for (;;) {
      ASSIGN_OR_RETURN(const bool has_item, loop.source->next(runtime_, item));
      if (!has_item) return false;
      if (!loop.stmt->exprs[2] || loop.is_tested) return true;
      // The test may be asked from inside a macro, through loop.last: it runs in the frame of the loop.
      Frame* const own = loop.frame;
      std::shared_ptr<Frame> frame = frame_;
      while (frame && frame.get() != own) frame = frame->parent;
      if (!frame) return invalid_argument("a filtered loop was read outside of where it runs");
      std::shared_ptr<Frame> outer = std::exchange(frame_, std::move(frame));
      Result<Value> test = [&]() -> Result<Value> {
        RETURN_IF_ERROR(assign(*loop.stmt->test_target, *item));
        return evaluate(*loop.stmt->exprs[2]);
      }();
      frame_ = std::move(outer);
      if (!test.is_ok()) return test.status();
      if (is_true(test.value())) return true;
    }
  }

  Result<bool> advance(LoopObject& loop, Value* item) {
    if (loop.after) {
      *item = *std::exchange(loop.after, std::nullopt);
    } else {
      ASSIGN_OR_RETURN(const bool has_item, pull(loop, item));
      if (!has_item) return false;
    }
    ++loop.index0;
    loop.before = std::exchange(loop.current, *item);
    return true;
  }

  Result<bool> peek(LoopObject& loop) {
    if (loop.after) return true;
    Value item;
    ASSIGN_OR_RETURN(const bool has_item, pull(loop, &item));
    if (has_item) loop.after = std::move(item);
    return has_item;
  }

  Result<int64_t> loop_length(LoopObject& loop) {
    if (loop.length) return *loop.length;
    const std::optional<size_t> length = length_of(loop.iterable);
    if (length && !loop.stmt->exprs[2]) {
      loop.length = static_cast<int64_t>(*length);
      return *loop.length;
    }
    // No length is known: read all that is left, and go on from that list.
    std::vector<Value> rest;
    for (;;) {
      Value item;
      ASSIGN_OR_RETURN(const bool has_item, pull(loop, &item));
      if (!has_item) break;
      rest.push_back(std::move(item));
    }
    loop.length = static_cast<int64_t>(rest.size()) + loop.index0 + 1 + (loop.after ? 1 : 0);
    ASSIGN_OR_RETURN(const Value list, runtime_.make_list(std::move(rest)));
    ASSIGN_OR_RETURN(loop.source, ValueIterator::over(list));
    loop.is_tested = true;
    return *loop.length;
  }

  Result<std::optional<Value>> loop_attribute(const Value& value, std::string_view name) {
    LoopObject& loop = value.as<LoopObject>();
    const auto integer = [](int64_t number) { return std::optional<Value>(Value::integer(number)); };
    if (name == "index") return integer(loop.index0 + 1);
    if (name == "index0") return integer(loop.index0);
    if (name == "depth") return integer(loop.depth0 + 1);
    if (name == "depth0") return integer(loop.depth0);
    if (name == "first") return std::optional<Value>(Value::boolean(loop.index0 == 0));
    if (name == "last") {
      ASSIGN_OR_RETURN(const bool has_next, peek(loop));
      return std::optional<Value>(Value::boolean(!has_next));
    }
    if (name == "length" || name == "revindex" || name == "revindex0") {
      ASSIGN_OR_RETURN(const int64_t length, loop_length(loop));
      return integer(name == "length" ? length : name == "revindex" ? length - loop.index0 : length - loop.index0 - 1);
    }
    if (name == "previtem") {
      if (loop.index0 == 0) return std::optional<Value>(Value::undefined("there is no previous item"));
      return std::optional<Value>(loop.before);
    }
    if (name == "nextitem") {
      ASSIGN_OR_RETURN(const bool has_next, peek(loop));
      return std::optional<Value>(has_next ? *loop.after : Value::undefined("there is no next item"));
    }
    if (name == "cycle" || name == "changed") return std::optional<Value>(runtime_.make_method(value, name));
    return std::optional<Value>();
  }

  Result<Value> call_loop_method(const MethodObject& method, const Arguments& arguments) {
    LoopObject& loop = method.self.as<LoopObject>();
    if (!arguments.named.empty()) return invalid_argument("loop." + method.name + "() takes no keyword arguments");
    if (method.name == "cycle") {
      if (arguments.positional.empty()) return invalid_argument("no items for cycling given");
      return arguments.positional[static_cast<size_t>(std::max<int64_t>(loop.index0, 0)) % arguments.positional.size()];
    }
    ASSIGN_OR_RETURN(Value value, runtime_.make_list(arguments.positional, Kind::kTuple));
    if (loop.last_changed && are_equal(*loop.last_changed, value)) return Value::boolean(false);
    loop.last_changed = std::move(value);
    return Value::boolean(true);
  }

  // ---- macros ----
  Value make_macro(const Stmt& stmt) {
    capture_frame();
    auto object = runtime_.make_object<MacroObject>();
    object->stmt = &stmt;
    object->frame = frame_;
    return Value::from_object(Kind::kMacro, std::move(object));
  }

  Status execute_call_block(const Stmt& stmt) {
    const Value caller = make_macro(stmt);
    Value result;
    if (stmt.exprs[0]) {
      ASSIGN_OR_RETURN(result, evaluate_call(*stmt.exprs[0], &caller));
    } else {
      ASSIGN_OR_RETURN(result, call_macro(caller, {}));
    }
    return append_block_result(result);
  }

  // What a filter block or call block writes is not printed but joined, so it has to be a string.
  Status append_block_result(const Value& value) {
    if (!value.is_string()) {
      return invalid_argument(std::string("expected str instance, ") + type_name(value) + " found");
    }
    return append_str(runtime_, *out_, value);
  }

  Result<Value> call_macro(const Value& value, Arguments arguments) {
    const Nesting nesting(*this);
    RETURN_IF_ERROR(check_depth());
    const MacroObject& macro = value.as<MacroObject>();
    const Stmt& stmt = *macro.stmt;
    const std::string name = stmt.name.empty() ? "None" : "'" + stmt.name + "'";
    const size_t num_parameters = stmt.parameters.size();
    std::vector<Value> bound(num_parameters);
    const size_t num_positional = std::min(num_parameters, arguments.positional.size());
    for (size_t i = 0; i < num_positional; ++i) bound[i] = arguments.positional[i];
    bool has_found_caller = num_positional == num_parameters && stmt.has_explicit_caller;
    const auto take_named = [&](std::string_view key) {
      for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
        if (it->first != key) continue;
        Value taken = std::move(it->second);
        arguments.named.erase(it);
        return taken;
      }
      return Value::missing();
    };
    for (size_t i = num_positional; i < num_parameters; ++i) {
      bound[i] = take_named(stmt.parameters[i]->name);
      if (stmt.parameters[i]->name == "caller") has_found_caller = true;
    }
    Value caller;
    if (stmt.caller.slot >= 0 && !has_found_caller) {
      caller = take_named("caller");
      if (caller.is_missing() || caller.is_none()) caller = Value::undefined("No caller defined");
    }
    Value kwargs, varargs;
    if (stmt.kwargs.slot >= 0) {
      std::vector<std::pair<Value, Value>> entries;
      for (auto& [key, argument] : arguments.named)
        entries.emplace_back(runtime_.make_string(key), std::move(argument));
      ASSIGN_OR_RETURN(kwargs, runtime_.make_dict(std::move(entries)));
    } else if (!arguments.named.empty()) {
      return invalid_argument("macro " + name + " takes no keyword argument '" + arguments.named[0].first + "'");
    }
    if (stmt.varargs.slot >= 0) {
      std::vector<Value> rest(arguments.positional.begin() + static_cast<ptrdiff_t>(num_positional),
                              arguments.positional.end());
      ASSIGN_OR_RETURN(varargs, runtime_.make_list(std::move(rest), Kind::kTuple));
    } else if (arguments.positional.size() > num_parameters) {
      return invalid_argument("macro " + name + " takes not more than " + std::to_string(num_parameters) +
                              " argument(s)");
    }

    Text text;
    Text* const outer_out = std::exchange(out_, &text);
    std::shared_ptr<Frame> outer_frame = std::exchange(frame_, make_frame(stmt.num_slots, macro.frame));
    const Status status = run_macro(stmt, std::move(bound), std::move(caller), std::move(kwargs), std::move(varargs));
    frame_ = std::move(outer_frame);
    out_ = outer_out;
    if (!status.is_ok()) return status;
    return runtime_.make_string(std::move(text));
  }

  Status run_macro(const Stmt& stmt, std::vector<Value> bound, Value caller, Value kwargs, Value varargs) {
    enter(stmt.scope);
    if (stmt.caller.slot >= 0) slot(stmt.caller) = std::move(caller);
    if (stmt.kwargs.slot >= 0) slot(stmt.kwargs) = std::move(kwargs);
    if (stmt.varargs.slot >= 0) slot(stmt.varargs) = std::move(varargs);
    const size_t num_parameters = stmt.parameters.size();
    for (size_t i = 0; i < num_parameters; ++i) slot(stmt.parameters[i]->variable) = std::move(bound[i]);
    for (size_t i = 0; i < num_parameters; ++i) {
      const Expr& parameter = *stmt.parameters[i];
      if (!slot(parameter.variable).is_missing()) continue;
      const size_t first_default = num_parameters - stmt.defaults.size();
      if (i < first_default) {
        slot(parameter.variable) = Value::undefined("parameter '" + parameter.name + "' was not provided");
      } else {
        ASSIGN_OR_RETURN(slot(parameter.variable), evaluate(*stmt.defaults[i - first_default]));
      }
    }
    return execute(stmt.bodies[0]);
  }

  // ---- expressions ----
  Result<Value> evaluate(const Expr& expr) {
    const Nesting nesting(*this);
    Result<Value> result = evaluate_checked(expr);
    if (!result.is_ok() && error_line_ == 0) error_line_ = expr.line;
    return result;
  }

  Result<Value> evaluate_checked(const Expr& expr) {
    RETURN_IF_ERROR(check_depth());
    RETURN_IF_ERROR(runtime_.step());
    switch (expr.kind) {
      case ExprKind::kConstant:
        return expr.constant;
      case ExprKind::kName:
      case ExprKind::kNamespaceRef: {
        const Value& value = slot(expr.variable);
        if (value.is_missing()) return Value::undefined("'" + expr.name + "' is undefined");
        return value;
      }
      case ExprKind::kTuple:
      case ExprKind::kList:
        return evaluate_list(expr);
      case ExprKind::kDict:
        return evaluate_dict(expr);
      case ExprKind::kGetAttr:
        return evaluate_attribute(expr);
      case ExprKind::kGetItem:
        return evaluate_item(expr);
      case ExprKind::kSlice:
        return evaluate_slice(expr);
      case ExprKind::kCall:
        return evaluate_call(expr, nullptr);
      case ExprKind::kFilter:
        return evaluate_filter(expr);
      case ExprKind::kTest:
        return evaluate_test(expr);
      case ExprKind::kBinary:
        return evaluate_binary(expr);
      case ExprKind::kConcat:
        return evaluate_concat(expr);
      case ExprKind::kCompare:
        return evaluate_compare(expr);
      case ExprKind::kNot:
      case ExprKind::kNegate:
      case ExprKind::kPlus:
        return evaluate_unary(expr);
      case ExprKind::kAnd:
      case ExprKind::kOr:
        return evaluate_logic(expr);
      case ExprKind::kCondition:
        return evaluate_condition(expr);
    }
    return Value::none();
  }

  Result<Value> evaluate_list(const Expr& expr) {
    std::vector<Value> items;
    items.reserve(expr.children.size());
    for (const ExprPtr& child : expr.children) {
      ASSIGN_OR_RETURN(Value item, evaluate(*child));
      items.push_back(std::move(item));
    }
    return runtime_.make_list(std::move(items), expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
  }

  Result<Value> evaluate_dict(const Expr& expr) {
    std::vector<std::pair<Value, Value>> entries;
    for (size_t i = 0; i < expr.children.size(); i += 2) {
      ASSIGN_OR_RETURN(Value key, evaluate(*expr.children[i]));
      ASSIGN_OR_RETURN(Value value, evaluate(*expr.children[i + 1]));
      entries.emplace_back(std::move(key), std::move(value));
    }
    return runtime_.make_dict(std::move(entries));
  }

  Result<Value> evaluate_attribute(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0]));
    return attribute_of(object, expr.name);
  }

  Result<Value> attribute_of(const Value& object, std::string_view name) {
    if (object.kind() == Kind::kLoop) {
      ASSIGN_OR_RETURN(const std::optional<Value> found, loop_attribute(object, name));
      if (found) return *found;
    }
    if (object.kind() == Kind::kMacro) {
      ASSIGN_OR_RETURN(const std::optional<Value> found, macro_attribute(*object.as<MacroObject>().stmt, name));
      if (found) return *found;
    }
    return get_attribute(runtime_, object, name);
  }

  Result<std::optional<Value>> macro_attribute(const Stmt& stmt, std::string_view name) {
    const auto flag = [](bool value) { return std::optional<Value>(Value::boolean(value)); };
    if (name == "name") return std::optional<Value>(runtime_.make_string(stmt.name, true));
    if (name == "catch_kwargs") return flag(stmt.kwargs.slot >= 0);
    if (name == "catch_varargs") return flag(stmt.varargs.slot >= 0);
    if (name == "caller") return flag(stmt.caller.slot >= 0 || stmt.has_explicit_caller);
    if (name != "arguments") return std::optional<Value>();
    std::vector<Value> names;
    for (const ExprPtr& parameter : stmt.parameters) names.push_back(runtime_.make_string(parameter->name, true));
    ASSIGN_OR_RETURN(Value tuple, runtime_.make_list(std::move(names), Kind::kTuple));
    return std::optional<Value>(std::move(tuple));
  }

  Result<Value> evaluate_item(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0]));
    ASSIGN_OR_RETURN(const Value index, evaluate(*expr.children[1]));
    if (object.kind() == Kind::kLoop && index.is_string()) return attribute_of(object, index.bytes());
    return get_item(runtime_, object, index);
  }

  Result<Value> evaluate_slice(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0]));
    Value bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (!expr.children[i + 1]) continue;
      ASSIGN_OR_RETURN(bounds[i], evaluate(*expr.children[i + 1]));
    }
    return slice(runtime_, object, bounds[0], bounds[1], bounds[2]);
  }

  Result<Arguments> evaluate_arguments(const CallArguments& call) {
    Arguments arguments;
    for (const ExprPtr& expr : call.positional) {
      ASSIGN_OR_RETURN(Value value, evaluate(*expr));
      arguments.positional.push_back(std::move(value));
    }
    if (call.star) {
      ASSIGN_OR_RETURN(const Value value, evaluate(*call.star));
      ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime_, value));
      arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
    }
    for (const auto& [name, expr] : call.named) {
      ASSIGN_OR_RETURN(Value value, evaluate(*expr));
      arguments.named.emplace_back(name, std::move(value));
    }
    if (call.double_star) {
      ASSIGN_OR_RETURN(const Value value, evaluate(*call.double_star));
      if (!value.is_dict()) return invalid_argument("argument after ** must be a mapping");
      for (const auto& [key, item] : value.dict_object().entries) {
        if (!key.is_string()) return invalid_argument("keywords must be strings");
        for (const auto& [name, other] : arguments.named) {
          if (name == key.bytes()) return invalid_argument("got multiple values for keyword argument '" + name + "'");
        }
        arguments.named.emplace_back(key.bytes(), item);
      }
    }
    return arguments;
  }

  Result<Value> evaluate_call(const Expr& expr, const Value* caller) {
    ASSIGN_OR_RETURN(const Value callee, evaluate(*expr.children[0]));
    ASSIGN_OR_RETURN(Arguments arguments, evaluate_arguments(expr.arguments));
    if (caller != nullptr) {
      for (const auto& [name, value] : arguments.named) {
        if (name == "caller") return invalid_argument("got multiple values for keyword argument 'caller'");
      }
      arguments.named.emplace_back("caller", *caller);
    }
    return call(callee, std::move(arguments));
  }

  Result<Value> call(const Value& callee, Arguments arguments) {
    switch (callee.kind()) {
      case Kind::kMacro:
        return call_macro(callee, std::move(arguments));
      case Kind::kMethod: {
        const MethodObject& method = callee.as<MethodObject>();
        if (method.self.kind() == Kind::kLoop) return call_loop_method(method, arguments);
        return call_method(runtime_, method, arguments);
      }
      case Kind::kGlobal:
        return call_global(runtime_, callee.as<GlobalObject>().name, arguments);
      case Kind::kJoiner: {
        JoinerObject& joiner = callee.as<JoinerObject>();
        RETURN_IF_ERROR(bind_arguments("joiner", arguments, {}, 0).status());
        if (std::exchange(joiner.is_used, true)) return joiner.separator;
        return runtime_.make_string("");
      }
      case Kind::kLoop: {
        const LoopObject& loop = callee.as<LoopObject>();
        if (!loop.stmt->is_recursive || !loop.defining_frame) {
          return invalid_argument("The loop must have the 'recursive' marker to be called recursively.");
        }
        ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("loop", arguments, {"iterable"}, 1));
        ASSIGN_OR_RETURN(Text text, run_recursive_loop(*loop.stmt, bound[0], loop.depth0 + 1, loop.defining_frame));
        return runtime_.make_string(std::move(text));
      }
      case Kind::kUndefined:
        return undefined_error(callee);
      default:
        return invalid_argument(std::string("'") + type_name(callee) + "' object is not callable");
    }
  }

  Result<Value> evaluate_filter(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value input, evaluate(*expr.children[0]));
    return apply_filter(expr, input);
  }

  Result<Value> apply_filter(const Expr& expr, const Value& input) {
    if (expr.filter == nullptr) return invalid_argument("No filter named '" + expr.name + "' found.");
    ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expr.arguments));
    if (input.kind() == Kind::kLoop && (expr.name == "length" || expr.name == "count")) {
      ASSIGN_OR_RETURN(const int64_t length, loop_length(input.as<LoopObject>()));
      return Value::integer(length);
    }
    return expr.filter->apply(runtime_, input, arguments);
  }

  // The chain of a filter block or set block, whose innermost filter takes the text of the block.
  Result<Value> apply_filters(const Expr& expr, const Value& input) {
    if (!expr.children[0]) return apply_filter(expr, input);
    ASSIGN_OR_RETURN(const Value inner, apply_filters(*expr.children[0], input));
    return apply_filter(expr, inner);
  }

  Result<Value> evaluate_test(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value input, evaluate(*expr.children[0]));
    if (expr.test == nullptr) return invalid_argument("No test named '" + expr.name + "' found.");
    ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expr.arguments));
    ASSIGN_OR_RETURN(const bool holds, expr.test->holds(runtime_, input, arguments));
    return Value::boolean(holds);
  }

  Result<Value> evaluate_binary(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value left, evaluate(*expr.children[0]));
    ASSIGN_OR_RETURN(const Value right, evaluate(*expr.children[1]));
    return apply_binary(runtime_, expr.binary, left, right);
  }

  Result<Value> evaluate_concat(const Expr& expr) {
    std::vector<Value> parts;
    for (const ExprPtr& child : expr.children) {
      ASSIGN_OR_RETURN(Value part, evaluate(*child));
      parts.push_back(std::move(part));
    }
    return concatenate(runtime_, parts);
  }

  Result<Value> evaluate_compare(const Expr& expr) {
    ASSIGN_OR_RETURN(Value left, evaluate(*expr.children[0]));
    for (size_t i = 0; i < expr.compares.size(); ++i) {
      ASSIGN_OR_RETURN(Value right, evaluate(*expr.children[i + 1]));
      ASSIGN_OR_RETURN(const bool holds, compare(runtime_, expr.compares[i], left, right));
      if (!holds) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  Result<Value> evaluate_unary(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value operand, evaluate(*expr.children[0]));
    if (expr.kind == ExprKind::kNot) return Value::boolean(!is_true(operand));
    return expr.kind == ExprKind::kNegate ? negate(operand) : identity_plus(operand);
  }

  Result<Value> evaluate_logic(const Expr& expr) {
    ASSIGN_OR_RETURN(Value left, evaluate(*expr.children[0]));
    if (is_true(left) == (expr.kind == ExprKind::kOr)) return left;
    return evaluate(*expr.children[1]);
  }

  Result<Value> evaluate_condition(const Expr& expr) {
    ASSIGN_OR_RETURN(const Value test, evaluate(*expr.children[1]));
    if (is_true(test)) return evaluate(*expr.children[0]);
    if (expr.children[2]) return evaluate(*expr.children[2]);
    return Value::undefined("the inline if-expression on line " + std::to_string(expr.line) +
                            " evaluated to false and no else section was defined.");
  }

  const TemplateTree& tree_;
  Runtime& runtime_;
  const int max_depth_;
  const std::unordered_map<std::string_view, Value>& variables_;
  std::shared_ptr<Frame> root_;
  std::shared_ptr<Frame> frame_;
  Text* out_ = nullptr;
  Flow flow_ = Flow::kNormal;
  int depth_ = 0;
  int error_line_ = 0;
  std::vector<std::shared_ptr<Frame>> captured_frames_;
};

}  // namespace

Result<Text> interpret(const TemplateTree& tree, Runtime& runtime, int max_depth,
                       const std::unordered_map<std::string_view, Value>& variables) {
  return Interpreter(tree, runtime, max_depth, variables).run();
}

}  // namespace quire::jinja
