// Operators, from those that bind least to those that bind most: one function a level of precedence, each of which asks
// the next for its operands. Recursive descent; depth is counted on the way down (the parser's own stack) and on the
// tree (long chains of operators grow it without nesting the source).
#include "text/jinja_expression_parser.h"

namespace quire::jinja {

Result<ExprPtr> ExpressionParser::parse_expression() {
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

Result<ExprPtr> ExpressionParser::parse_or() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_and());
  while (skip_name("or")) {
    ASSIGN_OR_RETURN(ExprPtr right, parse_and());
    ASSIGN_OR_RETURN(left, make_pair(ExprKind::kOr, std::move(left), std::move(right), line));
    line = current().line;
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_and() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_not());
  while (skip_name("and")) {
    ASSIGN_OR_RETURN(ExprPtr right, parse_not());
    ASSIGN_OR_RETURN(left, make_pair(ExprKind::kAnd, std::move(left), std::move(right), line));
    line = current().line;
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  RETURN_IF_ERROR(check_nesting());
  const int line = current().line;
  next();
  ASSIGN_OR_RETURN(ExprPtr operand, parse_not());
  return make_unary(ExprKind::kNot, std::move(operand), line);
}

Result<ExprPtr> ExpressionParser::parse_compare() {
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

Result<ExprPtr> ExpressionParser::parse_sum() {
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

Result<ExprPtr> ExpressionParser::parse_concat() {
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

Result<ExprPtr> ExpressionParser::parse_product() {
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

Result<ExprPtr> ExpressionParser::parse_power() {
  int line = current().line;
  ASSIGN_OR_RETURN(ExprPtr left, parse_unary(true));
  while (skip_operator("**")) {
    ASSIGN_OR_RETURN(ExprPtr right, parse_unary(true));
    ASSIGN_OR_RETURN(left, make_binary(BinaryOperator::kPow, std::move(left), std::move(right), line));
    line = current().line;
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_unary(bool allows_filters) {
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

}  // namespace quire::jinja
