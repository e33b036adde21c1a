#include "text/grammar_schema_members.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

namespace quire::grammar_internal {
namespace {

// The rule "behind member i" offers every member up to the next required one; not one by one, but by
// blocks of 16 and 256 keys, which it shares with the rules of all members before. Each block is a rule of its own, and
// deterministic in its keys. All calls are the last thing of their rules, so the stack does not grow either.
class LongMembers {
 public:
  LongMembers(NodePool& pool, const std::vector<ObjectMember>& members, NodeIndex space, NodeIndex separator)
      : pool_(pool),
        members_(members),
        space_(space),
        separator_(separator),
        whole_(members.size(), kNoNode),
        rest_(members.size(), kNoNode),
        blocks_(members.size(), kNoNode),
        large_blocks_(members.size(), kNoNode),
        num_distinct_(members.size(), 0) {}

  NodeIndex build(NodeIndex others) {
    NodeIndex behind = pool_.empty();  // the member at hand
    if (others != kNoNode) {
      others_ = rule_of("others", pool_.sequence({others, pool_.repeat(pool_.sequence({separator_, others}), 0, -1)}));
      behind = pool_.optional(pool_.sequence({separator_, others_}));
    }
    NodeIndex first = kNoNode;
    for (size_t end = members_.size(); end > 0;) {
      // A run goes up to a required member, and that included, or to the end. Blocks are counted from its beginning.
      size_t begin = end - 1;
      while (begin > 0 && !members_[begin - 1].is_required) --begin;
      for (size_t i = begin; i < end; i += kLargeBlock) tell_apart(i, std::min(i + kLargeBlock, end));
      for (size_t i = end; i-- > begin;) {
        const std::string& key = members_[i].key;
        rest_[i] =
            rule_of("rest of a member", pool_.sequence({pool_.bytes(std::string_view(key).substr(num_distinct_[i])),
                                                        space_, members_[i].value, behind}));
        whole_[i] = rule_of("member", named({&i, 1}, 0));
        if ((i - begin) % kBlock == 0) blocks_[i] = block(i, std::min(i + kBlock, end));
        if ((i - begin) % kLargeBlock == 0) large_blocks_[i] = block(i, std::min(i + kLargeBlock, end));
        first = offer(i, begin, end);
        behind = pool_.sequence({separator_, first});
        if (!members_[end - 1].is_required) behind = pool_.optional(behind);
      }
      end = begin;
    }
    return first;
  }

 private:
  static constexpr size_t kBlock = 16;
  static constexpr size_t kLargeBlock = kBlock * kBlock;

  NodeIndex rule_of(std::string_view name, NodeIndex body) {
    const NodeIndex rule = pool_.declare_rule(name);
    pool_.define_rule(rule, body);
    return rule;
  }

  std::vector<size_t> sorted(size_t begin, size_t end) const {
    std::vector<size_t> order;
    for (size_t i = begin; i < end; ++i) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return members_[a].key < members_[b].key; });
    return order;
  }

  size_t num_shared(size_t a, size_t b) const {
    const std::string& x = members_[a].key;
    const std::string& y = members_[b].key;
    const size_t num_shared =
        static_cast<size_t>(std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin());
    pool_.work().spend(1 + num_shared / 8);
    return num_shared;
  }

  // How much of each key tells it from all others of its large block. The rest of it is written only once.
  void tell_apart(size_t begin, size_t end) {
    const std::vector<size_t> order = sorted(begin, end);
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      const size_t num_distinct = num_shared(order[i], order[i + 1]) + 1;
      for (const size_t member : {order[i], order[i + 1]}) {
        num_distinct_[member] = std::max(num_distinct_[member], num_distinct);
      }
    }
  }

  // One of these members, sorted by key, of which num_read bytes have been read. No key is the beginning of another:
  // they end with a quote. Every step parts them, so the recursion is no deeper than they are many.
  NodeIndex named(std::span<const size_t> order, size_t num_read) {
    const std::string& key = members_[order.front()].key;
    const auto text = [&](size_t end) { return pool_.bytes(std::string_view(key).substr(num_read, end - num_read)); };
    if (order.size() == 1) return pool_.sequence({text(num_distinct_[order[0]]), rest_[order[0]]});
    const size_t split = num_shared(order.front(), order.back());
    std::vector<NodeIndex> ways;
    for (size_t begin = 0; begin < order.size();) {
      size_t end = begin + 1;
      while (end < order.size() && members_[order[end]].key[split] == members_[order[begin]].key[split]) ++end;
      ways.push_back(named(order.subspan(begin, end - begin), split));
      begin = end;
    }
    return pool_.sequence({text(split), pool_.alternatives(std::move(ways))});
  }

  NodeIndex block(size_t begin, size_t end) { return rule_of("members", named(sorted(begin, end), 0)); }

  // The members from i on, of a run.
  NodeIndex offer(size_t i, size_t run_begin, size_t run_end) {
    std::vector<NodeIndex> ways;
    while (i < run_end) {
      const size_t place = i - run_begin;
      if (place % kLargeBlock == 0) {
        ways.push_back(large_blocks_[i]);
        i += kLargeBlock;
      } else if (place % kBlock == 0) {
        ways.push_back(blocks_[i]);
        i += kBlock;
      } else {
        ways.push_back(whole_[i]);
        ++i;
      }
    }
    if (!members_[run_end - 1].is_required && others_ != kNoNode) ways.push_back(others_);
    return pool_.alternatives(std::move(ways));
  }

  NodePool& pool_;
  const std::vector<ObjectMember>& members_;
  const NodeIndex space_, separator_;
  NodeIndex others_ = kNoNode;  // some of them, with separators between
  // By member: all of it and what may follow; the same without what tells its key apart; and, where a block begins, any
  // member of the block and what may follow.
  std::vector<NodeIndex> whole_, rest_, blocks_, large_blocks_;
  std::vector<size_t> num_distinct_;
};

}  // namespace

NodeIndex long_members(NodePool& pool, const std::vector<ObjectMember>& members, NodeIndex others, NodeIndex space,
                       NodeIndex separator) {
  return LongMembers(pool, members, space, separator).build(others);
}

}  // namespace quire::grammar_internal
