// Expressions of a template → values, with the variables they read. What loops and macros answer is left to the
// interpreter of statements (jinja_interpreter.cc), which derives from this. One evaluator is one rendering on one
// thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja_ast.h"

namespace quire::jinja {

// The variables of one call of a macro or of a recursive loop, at the slots that jinja_scopes chose.
struct Frame {
  std::vector<Value> slots;
  std::shared_ptr<Frame> parent;
  bool is_captured = false;  // a macro may outlive the call; the interpreter empties such frames at the end
};

class ExpressionEvaluator {
 public:
  ExpressionEvaluator(const ExpressionEvaluator&) = delete;
  ExpressionEvaluator& operator=(const ExpressionEvaluator&) = delete;

 protected:
  ExpressionEvaluator(const TemplateTree& tree, Runtime& runtime, int max_depth,
                      const std::unordered_map<std::string_view, Value>& variables)
      : tree_(tree), runtime_(runtime), max_depth_(max_depth), variables_(variables) {}
  virtual ~ExpressionEvaluator() = default;

  // ---- what the statements answer ----
  virtual Result<Value> call_macro(const Value& value, Arguments arguments) = 0;
  virtual Result<Value> call_loop(const Value& value, const Arguments& arguments) = 0;
  virtual Result<Value> call_loop_method(const MethodObject& method, const Arguments& arguments) = 0;
  // Nothing: the object has no attribute of its own by this name.
  virtual Result<std::optional<Value>> macro_attribute(const Value& value, std::string_view name) = 0;
  virtual Result<std::optional<Value>> loop_attribute(const Value& value, std::string_view name) = 0;
  virtual Result<int64_t> length_of_loop(const Value& value) = 0;

  // ---- frames and variables ----
  static std::shared_ptr<Frame> make_frame(int num_slots, std::shared_ptr<Frame> parent);
  Value& slot(const VariableRef& variable);
  void enter(const Scope& scope);
  void leave(const Scope& scope);

  class Nesting {
   public:
    explicit Nesting(ExpressionEvaluator& evaluator) : evaluator_(evaluator) { ++evaluator_.depth_; }
    ~Nesting() { --evaluator_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionEvaluator& evaluator_;
  };
  Status check_depth() const;
  // The innermost line is told; an error that was met again on the way out keeps it.
  Status at_line(int line, Status status);

  // ---- expressions ----
  Result<Value> evaluate(const Expr& expr);
  Result<Value> evaluate_call(const Expr& expr, const Value* caller);
  // The chain of a filter block or set block, whose innermost filter takes the text of the block.
  Result<Value> apply_filters(const Expr& expr, const Value& input);

  const TemplateTree& tree_;
  Runtime& runtime_;
  std::shared_ptr<Frame> root_;
  std::shared_ptr<Frame> frame_;
  int error_line_ = 0;

 private:
  // ---- frames and variables ----
  Value resolve(const std::string& name);

  // ---- expressions ----
  Result<Value> evaluate_checked(const Expr& expr);
  Result<Value> evaluate_list(const Expr& expr);
  Result<Value> evaluate_dict(const Expr& expr);
  Result<Value> evaluate_attribute(const Expr& expr);
  Result<Value> attribute_of(const Value& object, std::string_view name);
  Result<Value> evaluate_item(const Expr& expr);
  Result<Value> evaluate_slice(const Expr& expr);
  Result<Arguments> evaluate_arguments(const CallArguments& call);
  Result<Value> call(const Value& callee, Arguments arguments);
  Result<Value> evaluate_filter(const Expr& expr);
  Result<Value> apply_filter(const Expr& expr, const Value& input);
  Result<Value> evaluate_test(const Expr& expr);
  Result<Value> evaluate_binary(const Expr& expr);
  Result<Value> evaluate_concat(const Expr& expr);
  Result<Value> evaluate_compare(const Expr& expr);
  Result<Value> evaluate_unary(const Expr& expr);
  Result<Value> evaluate_logic(const Expr& expr);
  Result<Value> evaluate_condition(const Expr& expr);

  const int max_depth_;
  const std::unordered_map<std::string_view, Value>& variables_;
  int depth_ = 0;
};

}  // namespace quire::jinja
