// One function a kind of expression. Depth and steps are counted here, for every node. See
// jinja_expression_evaluator.h.
#include "text/jinja_expression_evaluator.h"

#include "text/jinja_attributes.h"
#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace quire::jinja {

// ---- frames and variables ----

std::shared_ptr<Frame> ExpressionEvaluator::make_frame(int num_slots, std::shared_ptr<Frame> parent) {
  auto frame = std::make_shared<Frame>();
  frame->slots.resize(static_cast<size_t>(num_slots));
  frame->parent = std::move(parent);
  return frame;
}

Value& ExpressionEvaluator::slot(const VariableRef& variable) {
  Frame* frame = frame_.get();
  for (int i = 0; i < variable.hops; ++i) frame = frame->parent.get();
  return frame->slots[static_cast<size_t>(variable.slot)];
}

Value ExpressionEvaluator::resolve(const std::string& name) {
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

void ExpressionEvaluator::enter(const Scope& scope) {
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

void ExpressionEvaluator::leave(const Scope& scope) {
  for (const VariableLoad& load : scope.loads) slot(load.target) = Value::missing();
}

Status ExpressionEvaluator::check_depth() const {
  if (depth_ > max_depth_) {
    return resource_exhausted("the chat template recurses deeper than " + std::to_string(max_depth_) + " levels");
  }
  return ok_status();
}

Status ExpressionEvaluator::at_line(int line, Status status) {
  if (error_line_ == 0) error_line_ = line;
  return status;
}

// ---- expressions ----

Result<Value> ExpressionEvaluator::evaluate(const Expr& expr) {
  const Nesting nesting(*this);
  Result<Value> result = evaluate_checked(expr);
  if (!result.is_ok() && error_line_ == 0) error_line_ = expr.line;
  return result;
}

Result<Value> ExpressionEvaluator::evaluate_checked(const Expr& expr) {
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

Result<Value> ExpressionEvaluator::evaluate_list(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) {
    ASSIGN_OR_RETURN(Value item, evaluate(*child));
    items.push_back(std::move(item));
  }
  return runtime_.make_list(std::move(items), expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
}

Result<Value> ExpressionEvaluator::evaluate_dict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.children.size(); i += 2) {
    ASSIGN_OR_RETURN(Value key, evaluate(*expr.children[i]));
    ASSIGN_OR_RETURN(Value value, evaluate(*expr.children[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return runtime_.make_dict(std::move(entries));
}

Result<Value> ExpressionEvaluator::evaluate_attribute(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0]));
  return attribute_of(object, expr.name);
}

Result<Value> ExpressionEvaluator::attribute_of(const Value& object, std::string_view name) {
  if (object.kind() == Kind::kLoop) {
    ASSIGN_OR_RETURN(const std::optional<Value> found, loop_attribute(object, name));
    if (found) return *found;
  }
  if (object.kind() == Kind::kMacro) {
    ASSIGN_OR_RETURN(const std::optional<Value> found, macro_attribute(object, name));
    if (found) return *found;
  }
  return get_attribute(runtime_, object, name);
}

Result<Value> ExpressionEvaluator::evaluate_item(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0]));
  ASSIGN_OR_RETURN(const Value index, evaluate(*expr.children[1]));
  if (object.kind() == Kind::kLoop && index.is_string()) return attribute_of(object, index.bytes());
  return get_item(runtime_, object, index);
}

Result<Value> ExpressionEvaluator::evaluate_slice(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0]));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.children[i + 1]) continue;
    ASSIGN_OR_RETURN(bounds[i], evaluate(*expr.children[i + 1]));
  }
  return slice(runtime_, object, bounds[0], bounds[1], bounds[2]);
}

Result<Arguments> ExpressionEvaluator::evaluate_arguments(const CallArguments& call) {
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

Result<Value> ExpressionEvaluator::evaluate_call(const Expr& expr, const Value* caller) {
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

Result<Value> ExpressionEvaluator::call(const Value& callee, Arguments arguments) {
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
    case Kind::kLoop:
      return call_loop(callee, arguments);
    case Kind::kUndefined:
      return undefined_error(callee);
    default:
      return invalid_argument(std::string("'") + type_name(callee) + "' object is not callable");
  }
}

Result<Value> ExpressionEvaluator::evaluate_filter(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value input, evaluate(*expr.children[0]));
  return apply_filter(expr, input);
}

Result<Value> ExpressionEvaluator::apply_filter(const Expr& expr, const Value& input) {
  if (expr.filter == nullptr) return invalid_argument("No filter named '" + expr.name + "' found.");
  ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expr.arguments));
  if (input.kind() == Kind::kLoop && (expr.name == "length" || expr.name == "count")) {
    ASSIGN_OR_RETURN(const int64_t length, length_of_loop(input));
    return Value::integer(length);
  }
  return expr.filter->apply(runtime_, input, arguments);
}

Result<Value> ExpressionEvaluator::apply_filters(const Expr& expr, const Value& input) {
  if (!expr.children[0]) return apply_filter(expr, input);
  ASSIGN_OR_RETURN(const Value inner, apply_filters(*expr.children[0], input));
  return apply_filter(expr, inner);
}

Result<Value> ExpressionEvaluator::evaluate_test(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value input, evaluate(*expr.children[0]));
  if (expr.test == nullptr) return invalid_argument("No test named '" + expr.name + "' found.");
  ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expr.arguments));
  ASSIGN_OR_RETURN(const bool holds, expr.test->holds(runtime_, input, arguments));
  return Value::boolean(holds);
}

Result<Value> ExpressionEvaluator::evaluate_binary(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value left, evaluate(*expr.children[0]));
  ASSIGN_OR_RETURN(const Value right, evaluate(*expr.children[1]));
  return apply_binary(runtime_, expr.binary, left, right);
}

Result<Value> ExpressionEvaluator::evaluate_concat(const Expr& expr) {
  std::vector<Value> parts;
  for (const ExprPtr& child : expr.children) {
    ASSIGN_OR_RETURN(Value part, evaluate(*child));
    parts.push_back(std::move(part));
  }
  return concatenate(runtime_, parts);
}

Result<Value> ExpressionEvaluator::evaluate_compare(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, evaluate(*expr.children[0]));
  for (size_t i = 0; i < expr.compares.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, evaluate(*expr.children[i + 1]));
    ASSIGN_OR_RETURN(const bool holds, compare(runtime_, expr.compares[i], left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> ExpressionEvaluator::evaluate_unary(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value operand, evaluate(*expr.children[0]));
  if (expr.kind == ExprKind::kNot) return Value::boolean(!is_true(operand));
  return expr.kind == ExprKind::kNegate ? negate(operand) : identity_plus(operand);
}

Result<Value> ExpressionEvaluator::evaluate_logic(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, evaluate(*expr.children[0]));
  if (is_true(left) == (expr.kind == ExprKind::kOr)) return left;
  return evaluate(*expr.children[1]);
}

Result<Value> ExpressionEvaluator::evaluate_condition(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value test, evaluate(*expr.children[1]));
  if (is_true(test)) return evaluate(*expr.children[0]);
  if (expr.children[2]) return evaluate(*expr.children[2]);
  return Value::undefined("the inline if-expression on line " + std::to_string(expr.line) +
                          " evaluated to false and no else section was defined.");
}

}  // namespace quire::jinja
