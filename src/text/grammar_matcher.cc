#include "text/grammar_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/grammar_configurations.h"
#include "text/grammar_impl.h"
#include "text/grammar_token_sets.h"

namespace quire {

using grammar_internal::ConfigurationId;
using grammar_internal::Configurations;
using grammar_internal::NodeRange;
using grammar_internal::TokenSet;
using grammar_internal::TokenSetTable;
using grammar_internal::WalkItem;

namespace {

// The walk is made anew with what is still needed when it has grown to this, or to twice what was needed last time.
constexpr size_t kMinWalkLimit = size_t{4} << 20;
// Configurations of so many accepted tokens are kept for rollback; going back further replays the tokens.
constexpr size_t kNumKeptConfigurations = 64;
constexpr size_t kNumKeptMasks = 4;
// Work is bounded (Configurations::set_fuel; 40 ns each or so): an answer may do so much at once, and gains some with
// each token. Ordinary schemas need a hundredth of it.
constexpr int64_t kMaxFuel = 2'000'000;
constexpr int64_t kFuelOfToken = 100'000;

void set_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
}

}  // namespace

struct GrammarMatcher::Impl {
  Grammar::Ptr grammar;
  std::shared_ptr<const TokenSetTable> table;
  std::vector<int32_t> end_token_ids;

  std::unique_ptr<Configurations> walk;
  size_t walk_limit = kMinWalkLimit;
  ConfigurationId current = Configurations::kDead;
  bool has_ended = false;
  bool has_given_up = false;
  std::vector<int32_t> tokens;  // all that were accepted
  // Where the walk stood before each of the latest tokens; the last belongs to the last token.
  std::vector<ConfigurationId> before;

  struct KeptMask {
    ConfigurationId configuration;
    std::vector<uint32_t> mask;
  };
  std::vector<KeptMask> kept_masks;  // latest first; without the end tokens

  // Working memory.
  std::vector<WalkItem> items;
  std::vector<NodeRange> open;
  std::vector<int32_t> specials;
  std::vector<ConfigurationId> at_depth;
  std::vector<uint32_t> path;
  std::unique_ptr<TokenSet> spare;

  const GrammarVocabulary& vocabulary() const { return table->vocabulary(); }

  std::unique_ptr<Configurations> make_walk() const {
    return std::make_unique<Configurations>(table->automaton(), table->has_special());
  }

  bool is_end_token(int32_t id) const {
    return std::find(end_token_ids.begin(), end_token_ids.end(), id) != end_token_ids.end();
  }

  ConfigurationId step_token(ConfigurationId from, int32_t id) {
    if (const int32_t special = table->find_special_by_id(id); special >= 0) return walk->step_special(from, special);
    const std::string_view bytes = vocabulary().token_bytes(id);
    if (bytes.empty()) return Configurations::kDead;
    for (size_t i = 0; i < bytes.size() && from != Configurations::kDead; ++i) {
      from = walk->step(from, static_cast<uint8_t>(bytes[i]));
    }
    return from;
  }

  void trim_walk() {
    if (walk->num_bytes() <= walk_limit) return;
    std::unique_ptr<Configurations> fresh = make_walk();
    current = fresh->copy_from(*walk, current);
    if (before.size() > kNumKeptConfigurations) before.erase(before.begin(), before.end() - kNumKeptConfigurations);
    for (ConfigurationId& configuration : before) configuration = fresh->copy_from(*walk, configuration);
    fresh->set_fuel(walk->fuel());
    walk = std::move(fresh);
    walk_limit = std::max(kMinWalkLimit, 2 * walk->num_bytes());
    kept_masks.clear();
  }

  void compute_mask(std::span<uint32_t> mask) {
    // Computing a set adds configurations, which moves the items.
    const std::span<const WalkItem> current_items = walk->items(current);
    items.assign(current_items.begin(), current_items.end());
    open.clear();
    int32_t last_state = -1;
    for (const WalkItem& item : items) {
      if (walk->fuel() <= 0) return;
      if (item.state == last_state) continue;  // sorted by state; stacks make no difference here
      last_state = item.state;
      const TokenSet& set = table->get(item.state, *walk, spare);
      for (int32_t id : set.tokens) set_bit(mask, id);
      for (size_t w = 0; w < set.mask.size(); ++w) mask[w] |= set.mask[w];
      open.insert(open.end(), set.open.begin(), set.open.end());
    }
    decide_open(mask);
    specials.clear();
    walk->list_specials(current, specials);
    for (int32_t special : specials) {
      if (const int32_t id = table->special_id(special); id >= 0) set_bit(mask, id);
    }
  }

  // The tokens that end a rule inside: walked with the true stack.
  void decide_open(std::span<uint32_t> mask) {
    const GrammarVocabulary& tree = vocabulary();
    std::sort(open.begin(), open.end(), [](const NodeRange& a, const NodeRange& b) { return a.begin < b.begin; });
    at_depth.assign(tree.max_token_bytes() + 1, Configurations::kDead);
    path.assign(tree.max_token_bytes() + 1, 0);
    at_depth[0] = current;
    uint32_t done = 0;
    for (const NodeRange& range : open) {
      const uint32_t begin = std::max(range.begin, done);
      if (begin >= range.end) continue;
      done = range.end;
      if (!walk_to(tree.node_parent(begin))) continue;
      for (uint32_t node = begin; node < range.end;) {
        const size_t depth = tree.node_depth(node);
        const ConfigurationId next = walk->step(at_depth[depth - 1], tree.node_byte(node));
        if (next == Configurations::kDead) {
          node = tree.subtree_end(node);
          continue;
        }
        at_depth[depth] = next;
        path[depth] = node;
        for (int32_t id : tree.node_tokens(node)) set_bit(mask, id);
        ++node;
      }
    }
  }

  // Fills at_depth along the path to the node. False: it leads nowhere.
  bool walk_to(uint32_t node) {
    const GrammarVocabulary& tree = vocabulary();
    const size_t depth = tree.node_depth(node);
    size_t first = depth + 1;
    for (uint32_t n = node; first > 1 && path[first - 1] != n; n = tree.node_parent(n)) {
      path[first - 1] = n;
      --first;
    }
    for (size_t d = first; d <= depth; ++d) {
      at_depth[d] = at_depth[d - 1] == Configurations::kDead ? Configurations::kDead
                                                             : walk->step(at_depth[d - 1], tree.node_byte(path[d]));
    }
    return at_depth[depth] != Configurations::kDead;
  }
};

GrammarMatcher::GrammarMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarMatcher::~GrammarMatcher() = default;

std::unique_ptr<GrammarMatcher> GrammarMatcher::create(Grammar::Ptr grammar, GrammarVocabulary::Ptr vocabulary,
                                                       std::vector<int32_t> end_token_ids) {
  auto impl = std::make_unique<Impl>();
  impl->table = grammar->impl_->table_for(vocabulary);
  impl->grammar = std::move(grammar);
  std::erase_if(end_token_ids, [&](int32_t id) { return id < 0 || id >= vocabulary->num_tokens(); });
  impl->end_token_ids = std::move(end_token_ids);
  impl->walk = impl->make_walk();
  impl->walk->set_fuel(kMaxFuel);
  impl->current = impl->walk->start();
  return std::unique_ptr<GrammarMatcher>(new GrammarMatcher(std::move(impl)));
}

void GrammarMatcher::fill_mask(std::span<uint32_t> mask) {
  Impl& impl = *impl_;
  CHECK(mask.size() >= impl.vocabulary().num_mask_words());
  std::fill(mask.begin(), mask.end(), 0);
  if (impl.has_ended || impl.has_given_up) return;
  auto kept = std::find_if(impl.kept_masks.begin(), impl.kept_masks.end(),
                           [&](const Impl::KeptMask& m) { return m.configuration == impl.current; });
  if (kept == impl.kept_masks.end()) {
    impl.compute_mask(mask);
    if (impl.walk->fuel() <= 0) {
      impl.has_given_up = true;
      std::fill(mask.begin(), mask.end(), 0);
      return;
    }
    if (impl.kept_masks.size() < kNumKeptMasks) impl.kept_masks.emplace_back();
    kept = impl.kept_masks.end() - 1;
    kept->configuration = impl.current;
    kept->mask.assign(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(impl.vocabulary().num_mask_words()));
  } else {
    std::copy(kept->mask.begin(), kept->mask.end(), mask.begin());
  }
  std::rotate(impl.kept_masks.begin(), kept, kept + 1);
  if (impl.walk->may_end(impl.current)) {
    for (int32_t id : impl.end_token_ids) set_bit(mask, id);
  }
}

bool GrammarMatcher::accept(int32_t token_id) {
  Impl& impl = *impl_;
  if (impl.has_ended || impl.has_given_up || token_id < 0 || token_id >= impl.vocabulary().num_tokens()) return false;
  const ConfigurationId next = impl.step_token(impl.current, token_id);
  if (impl.walk->fuel() <= 0) {
    impl.has_given_up = true;
    return false;
  }
  if (next == Configurations::kDead) {
    if (!impl.is_end_token(token_id) || !impl.walk->may_end(impl.current)) return false;
    impl.has_ended = true;
  }
  impl.before.push_back(impl.current);
  if (next != Configurations::kDead) impl.current = next;
  impl.tokens.push_back(token_id);
  impl.walk->set_fuel(std::min(kMaxFuel, impl.walk->fuel() + kFuelOfToken));
  impl.trim_walk();
  return true;
}

void GrammarMatcher::rollback(int num_tokens) {
  Impl& impl = *impl_;
  CHECK(num_tokens >= 0);
  CHECK(num_tokens <= num_accepted());
  if (num_tokens == 0) return;
  impl.has_ended = false;
  const auto count = static_cast<size_t>(num_tokens);
  if (count <= impl.before.size()) {
    impl.current = impl.before[impl.before.size() - count];
    impl.before.resize(impl.before.size() - count);
    impl.tokens.resize(impl.tokens.size() - count);
    return;
  }
  std::vector<int32_t> tokens = std::move(impl.tokens);
  tokens.resize(tokens.size() - count);
  impl.tokens.clear();
  impl.before.clear();
  impl.current = impl.walk->start();
  for (int32_t token : tokens) CHECK(accept(token) || impl.has_given_up);
}

int GrammarMatcher::num_accepted() const {
  return static_cast<int>(impl_->tokens.size());
}

bool GrammarMatcher::has_given_up() const {
  return impl_->has_given_up;
}

bool GrammarMatcher::may_end() const {
  return impl_->has_ended || impl_->walk->may_end(impl_->current);
}

bool GrammarMatcher::has_ended() const {
  return impl_->has_ended;
}

bool GrammarMatcher::must_end() const {
  return impl_->has_ended || !impl_->walk->may_go_on(impl_->current);
}

std::unique_ptr<GrammarMatcher> GrammarMatcher::clone() const {
  auto copy = std::make_unique<Impl>();
  copy->grammar = impl_->grammar;
  copy->table = impl_->table;
  copy->end_token_ids = impl_->end_token_ids;
  copy->has_ended = impl_->has_ended;
  copy->has_given_up = impl_->has_given_up;
  copy->tokens = impl_->tokens;
  copy->walk = copy->make_walk();
  copy->walk->set_fuel(impl_->walk->fuel());
  copy->current = copy->walk->copy_from(*impl_->walk, impl_->current);
  const size_t num_kept = std::min(impl_->before.size(), kNumKeptConfigurations);
  for (size_t i = impl_->before.size() - num_kept; i < impl_->before.size(); ++i) {
    copy->before.push_back(copy->walk->copy_from(*impl_->walk, impl_->before[i]));
  }
  return std::unique_ptr<GrammarMatcher>(new GrammarMatcher(std::move(copy)));
}

}  // namespace quire
