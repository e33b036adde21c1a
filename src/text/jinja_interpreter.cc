// Statements write to the current output. Variables live in frames, one a call of a macro or of a recursive loop;
// expressions are evaluated by the class that the interpreter derives from (jinja_expression_evaluator.h). See
// jinja_interpreter.h.
#include "text/jinja_interpreter.h"

#include "text/jinja_expression_evaluator.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"

namespace quire::jinja {
namespace {

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

class Interpreter final : private ExpressionEvaluator {
 public:
  Interpreter(const TemplateTree& tree, Runtime& runtime, int max_depth,
              const std::unordered_map<std::string_view, Value>& variables)
      : ExpressionEvaluator(tree, runtime, max_depth, variables) {}
  ~Interpreter() override;

  Result<Text> run();

 private:
  // ---- statements ----
  Status execute(const Body& body);
  Status execute(const Stmt& stmt);
  Status execute_output(const Stmt& stmt);
  Status execute_if(const Stmt& stmt);
  Result<Text> capture(const Body& body);
  Status execute_set_block(const Stmt& stmt);
  // A set on something else than a namespace fails before its value is computed.
  Status check_namespaces(const Expr& target);
  Status assign(const Expr& target, Value value);

  // ---- loops ----
  Status execute_for(const Stmt& stmt);
  Result<Text> run_recursive_loop(const Stmt& stmt, Value iterable, int64_t depth0,
                                  std::shared_ptr<Frame> defining_frame);
  Status run_loop(const Stmt& stmt, Value iterable, int64_t depth0, std::shared_ptr<Frame> defining_frame);
  Status run_iterations(const Stmt& stmt, const std::shared_ptr<LoopObject>& loop);
  // The next item that passes the loop's test.
  Result<bool> pull(LoopObject& loop, Value* item);
  Result<bool> advance(LoopObject& loop, Value* item);
  Result<bool> peek(LoopObject& loop);
  Result<int64_t> loop_length(LoopObject& loop);
  Result<std::optional<Value>> loop_attribute(const Value& value, std::string_view name) override;
  Result<Value> call_loop_method(const MethodObject& method, const Arguments& arguments) override;
  Result<Value> call_loop(const Value& value, const Arguments& arguments) override;
  Result<int64_t> length_of_loop(const Value& value) override;

  // ---- macros ----
  void capture_frame();
  Value make_macro(const Stmt& stmt);
  Status execute_call_block(const Stmt& stmt);
  // What a filter block or call block writes is not printed but joined, so it has to be a string.
  Status append_block_result(const Value& value);
  Result<Value> call_macro(const Value& value, Arguments arguments) override;
  Status run_macro(const Stmt& stmt, std::vector<Value> bound, Value caller, Value kwargs, Value varargs);
  Result<std::optional<Value>> macro_attribute(const Value& value, std::string_view name) override;

  Text* out_ = nullptr;
  Flow flow_ = Flow::kNormal;
  std::vector<std::shared_ptr<Frame>> captured_frames_;
};

Interpreter::~Interpreter() {
  for (const auto& frame : captured_frames_) frame->slots.clear();
  runtime_.release_namespaces();
}

Result<Text> Interpreter::run() {
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

// ---- statements ----

Status Interpreter::execute(const Body& body) {
  for (const StmtPtr& stmt : body) {
    Status status = execute(*stmt);
    if (!status.is_ok()) return at_line(stmt->line, std::move(status));
    if (flow_ != Flow::kNormal) break;
  }
  return ok_status();
}

Status Interpreter::execute(const Stmt& stmt) {
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

Status Interpreter::execute_output(const Stmt& stmt) {
  for (const ExprPtr& expr : stmt.exprs) {
    ASSIGN_OR_RETURN(const Value value, evaluate(*expr));
    Status status = append_str(runtime_, *out_, value);
    if (!status.is_ok()) return at_line(expr->line, std::move(status));
  }
  return ok_status();
}

Status Interpreter::execute_if(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    ASSIGN_OR_RETURN(const Value test, evaluate(*stmt.exprs[i]));
    if (is_true(test)) return execute(stmt.bodies[i]);
  }
  return stmt.bodies.size() > stmt.exprs.size() ? execute(stmt.bodies.back()) : ok_status();
}

Result<Text> Interpreter::capture(const Body& body) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  const Status status = execute(body);
  out_ = outer;
  if (!status.is_ok()) return status;
  return text;
}

Status Interpreter::execute_set_block(const Stmt& stmt) {
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

Status Interpreter::check_namespaces(const Expr& target) {
  if (target.kind == ExprKind::kNamespaceRef && slot(target.variable).kind() != Kind::kNamespace) {
    return invalid_argument("cannot assign attribute on non-namespace object");
  }
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& child : target.children) RETURN_IF_ERROR(check_namespaces(*child));
  }
  return ok_status();
}

Status Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::kName) {
    slot(target.variable) = std::move(value);
    return ok_status();
  }
  if (target.kind == ExprKind::kNamespaceRef) {
    const Value object = slot(target.variable);
    if (object.kind() != Kind::kNamespace) return invalid_argument("cannot assign attribute on non-namespace object");
    if (target.attribute.starts_with('_')) {
      return invalid_argument("a namespace cannot store the underscore-prefixed attribute '" + target.attribute + "'");
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

Status Interpreter::execute_for(const Stmt& stmt) {
  ASSIGN_OR_RETURN(Value iterable, evaluate(*stmt.exprs[1]));
  if (!stmt.is_recursive) return run_loop(stmt, std::move(iterable), 0, nullptr);
  ASSIGN_OR_RETURN(const Text text, run_recursive_loop(stmt, std::move(iterable), 0, frame_));
  RETURN_IF_ERROR(runtime_.check_string_size(out_->size() + text.size()));
  out_->append(text);
  return ok_status();
}

Result<Text> Interpreter::run_recursive_loop(const Stmt& stmt, Value iterable, int64_t depth0,
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

Status Interpreter::run_loop(const Stmt& stmt, Value iterable, int64_t depth0, std::shared_ptr<Frame> defining_frame) {
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

Status Interpreter::run_iterations(const Stmt& stmt, const std::shared_ptr<LoopObject>& loop) {
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

Result<bool> Interpreter::pull(LoopObject& loop, Value* item) {
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

Result<bool> Interpreter::advance(LoopObject& loop, Value* item) {
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

Result<bool> Interpreter::peek(LoopObject& loop) {
  if (loop.after) return true;
  Value item;
  ASSIGN_OR_RETURN(const bool has_item, pull(loop, &item));
  if (has_item) loop.after = std::move(item);
  return has_item;
}

Result<int64_t> Interpreter::loop_length(LoopObject& loop) {
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

Result<std::optional<Value>> Interpreter::loop_attribute(const Value& value, std::string_view name) {
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

Result<Value> Interpreter::call_loop_method(const MethodObject& method, const Arguments& arguments) {
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

Result<Value> Interpreter::call_loop(const Value& value, const Arguments& arguments) {
  const LoopObject& loop = value.as<LoopObject>();
  if (!loop.stmt->is_recursive || !loop.defining_frame) {
    return invalid_argument("The loop must have the 'recursive' marker to be called recursively.");
  }
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("loop", arguments, {"iterable"}, 1));
  ASSIGN_OR_RETURN(Text text, run_recursive_loop(*loop.stmt, bound[0], loop.depth0 + 1, loop.defining_frame));
  return runtime_.make_string(std::move(text));
}

Result<int64_t> Interpreter::length_of_loop(const Value& value) {
  return loop_length(value.as<LoopObject>());
}

// ---- macros ----

void Interpreter::capture_frame() {
  if (frame_->is_captured) return;
  frame_->is_captured = true;
  captured_frames_.push_back(frame_);
  runtime_.meter().charge(sizeof(Frame) + frame_->slots.size() * sizeof(Value));  // kept to the end: never refunded
}

Value Interpreter::make_macro(const Stmt& stmt) {
  capture_frame();
  auto object = runtime_.make_object<MacroObject>();
  object->stmt = &stmt;
  object->frame = frame_;
  return Value::from_object(Kind::kMacro, std::move(object));
}

Status Interpreter::execute_call_block(const Stmt& stmt) {
  const Value caller = make_macro(stmt);
  Value result;
  if (stmt.exprs[0]) {
    ASSIGN_OR_RETURN(result, evaluate_call(*stmt.exprs[0], &caller));
  } else {
    ASSIGN_OR_RETURN(result, call_macro(caller, {}));
  }
  return append_block_result(result);
}

Status Interpreter::append_block_result(const Value& value) {
  if (!value.is_string()) {
    return invalid_argument(std::string("expected str instance, ") + type_name(value) + " found");
  }
  return append_str(runtime_, *out_, value);
}

Result<Value> Interpreter::call_macro(const Value& value, Arguments arguments) {
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
    for (auto& [key, argument] : arguments.named) entries.emplace_back(runtime_.make_string(key), std::move(argument));
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

Status Interpreter::run_macro(const Stmt& stmt, std::vector<Value> bound, Value caller, Value kwargs, Value varargs) {
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

Result<std::optional<Value>> Interpreter::macro_attribute(const Value& value, std::string_view name) {
  const Stmt& stmt = *value.as<MacroObject>().stmt;
  const auto flag = [](bool is_set) { return std::optional<Value>(Value::boolean(is_set)); };
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

}  // namespace

Result<Text> interpret(const TemplateTree& tree, Runtime& runtime, int max_depth,
                       const std::unordered_map<std::string_view, Value>& variables) {
  return Interpreter(tree, runtime, max_depth, variables).run();
}

}  // namespace quire::jinja
