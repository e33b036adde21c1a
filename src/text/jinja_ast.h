// The syntax tree of a template: made by the parser, completed by the scope analysis (jinja_scopes), then read-only and
// shared by all renderings. Nodes are plain structs; which children a kind has is told beside it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace quire::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // *args, **kwargs
};

enum class ExprKind {
  kConstant,      // constant
  kName,          // name; resolved
  kTuple,         // children
  kList,          // children
  kDict,          // children: key, value, key, value ...
  kGetAttr,       // children[0].name
  kGetItem,       // children[0][children[1]]
  kSlice,         // children[0][children[1]:children[2]:children[3]], each of the last three may be null
  kCall,          // children[0](arguments)
  kFilter,        // children[0]|name(arguments); children[0] is null at the start of a filter block
  kTest,          // children[0] is name(arguments)
  kNot,           // children[0]
  kNegate,        // children[0]
  kPlus,          // children[0]
  kBinary,        // children[0] binary children[1]
  kConcat,        // children joined by ~
  kAnd,           // children[0], children[1]
  kOr,            // children[0], children[1]
  kCompare,       // children[0] compares[0] children[1] compares[1] ...
  kCondition,     // children[0] if children[1] else children[2]; the last may be null
  kNamespaceRef,  // name.attribute as a target of set; resolved
};

// Where a variable lives: `hops` function frames outward, then the slot.
struct VariableRef {
  int hops = -1;
  int slot = -1;
};

enum class NameUse { kLoad, kStore, kParameter };

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;  // of the tree below; bounds the recursion of everything that walks it
  std::string name;
  std::string attribute;
  NameUse use = NameUse::kLoad;
  VariableRef variable;
  Value constant;
  BinaryOperator binary = BinaryOperator::kAdd;
  std::vector<CompareOperator> compares;
  std::vector<ExprPtr> children;
  CallArguments arguments;
  const FilterRow* filter = nullptr;
  const TestRow* test = nullptr;
};

// What a scope does with a variable when it is entered.
struct VariableLoad {
  enum class Action { kParameter, kResolve, kAlias, kUndefined } action;
  VariableRef target;  // hops is 0
  std::string name;    // kResolve
  VariableRef source;  // kAlias
};

struct Scope {
  std::vector<VariableLoad> loads;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class StmtKind {
  kOutput,       // exprs; constants of kind string are template data
  kIf,           // branches: exprs[i] guards bodies[i]; one more body is the else
  kFor,          // exprs: target, iterable, test (or null); bodies: body, else
  kSet,          // exprs: target, value
  kSetBlock,     // exprs: target, filter (or null); bodies[0]
  kMacro,        // name, parameters, defaults; bodies[0]
  kCallBlock,    // exprs[0] the call, null for {% generation %}; parameters, defaults; bodies[0]
  kFilterBlock,  // exprs[0] the filter; bodies[0]
  kBlock,        // bodies[0], in a frame without an outer one
  kWith,         // exprs: targets then values; bodies[0]
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  int depth = 1;
  std::string name;
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;
  std::vector<ExprPtr> parameters;  // kName
  std::vector<ExprPtr> defaults;    // of the last parameters
  bool is_recursive = false;

  // Filled by the scope analysis.
  Scope scope, else_scope, test_scope;
  ExprPtr test_target;   // the target of a for with a test, bound in the scope of the test
  VariableRef variable;  // of a macro: where it is stored; of an extended for: the loop variable
  bool has_loop_variable = false;
  int num_slots = 0;                    // of the frame of a macro, call block or recursive for
  VariableRef caller, kwargs, varargs;  // slot -1 where the macro does not use them
  bool has_explicit_caller = false;
};

struct TemplateTree {
  Body body;
  Scope scope;
  int num_slots = 0;
  std::map<std::string, int, std::less<>> top_level;  // what is set outside of all loops and macros → its slot
};

}  // namespace quire::jinja
