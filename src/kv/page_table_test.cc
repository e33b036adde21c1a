// Page tables over one pool: scenarios, a million random operations against a shadow memory, and how much of the pages'
// bytes is useful under chat-like lengths.
#include "kv/page_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "kv/prefix_cache.h"

namespace quire {
namespace {

TEST(PageTable, GrowsByPagesAndFindsSlots) {
  PagePool pool(8);
  std::vector<PageCopyRequest> copies;
  PageTable table(&pool, 16, 0);
  EXPECT_EQ(table.pages_to_grow(16), 1);
  EXPECT_EQ(table.pages_to_grow(17), 2);
  ASSERT_TRUE(table.grow(17, &copies));
  EXPECT_EQ(table.page_ids().size(), 2u);
  EXPECT_EQ(table.slot(16), table.page_ids()[1] * 16);
  EXPECT_EQ(table.slot(5), table.page_ids()[0] * 16 + 5);
  EXPECT_FALSE(table.grow(16 * 9, &copies));
  EXPECT_EQ(table.num_tokens(), 17);
  EXPECT_EQ(pool.num_used(), 2);
  table.truncate(16);
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_TRUE(copies.empty());
}

TEST(PageTable, AForkCopiesThePartlyFilledPageBeforeWriting) {
  PagePool pool(8);
  std::vector<PageCopyRequest> copies;
  PageTable parent(&pool, 16, 0);
  ASSERT_TRUE(parent.grow(20, &copies));
  PageTable child = parent.fork();
  EXPECT_EQ(pool.num_used(), 2);
  EXPECT_EQ(pool.num_shared(), 2);
  EXPECT_EQ(child.pages_to_grow(21), 1);
  ASSERT_TRUE(child.grow(21, &copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from.page(), parent.page_ids()[1]);
  EXPECT_EQ(copies[0].to, child.page_ids()[1]);
  EXPECT_EQ(child.page_ids()[0], parent.page_ids()[0]);
  // While the copy is outstanding its source may not be written either.
  EXPECT_EQ(parent.pages_to_grow(21), 1);
  copies.clear();
  EXPECT_EQ(parent.pages_to_grow(21), 0);
  ASSERT_TRUE(parent.grow(21, &copies));
  EXPECT_TRUE(copies.empty());
}

TEST(PageTable, AForkAtAPageEndCopiesNothing) {
  PagePool pool(8);
  std::vector<PageCopyRequest> copies;
  PageTable parent(&pool, 16, 0);
  ASSERT_TRUE(parent.grow(32, &copies));
  PageTable child = parent.fork();
  ASSERT_TRUE(child.grow(33, &copies));
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(pool.num_used(), 3);
}

TEST(PageTable, AWindowFreesWhatNoQueryWillSee) {
  PagePool pool(8);
  std::vector<PageCopyRequest> copies;
  PageTable table(&pool, 8, 10);
  ASSERT_TRUE(table.grow(40, &copies));
  table.release_behind(16);  // sees 7..16
  EXPECT_EQ(pool.num_used(), 5);
  table.release_behind(17);  // sees 8..17
  EXPECT_EQ(pool.num_used(), 4);
  EXPECT_EQ(table.page_ids()[0], -1);
  table.release_behind(39);  // sees 30..39
  EXPECT_EQ(pool.num_used(), 2);
  EXPECT_GE(table.slot(30), 0);
  EXPECT_EQ(PageTable::max_pages(40, 8, 10, 1), 3);
}

// A million random operations. A shadow memory holds a tag a slot; every table also has its tags in a plain vector, and
// what the table reads through its pages must equal it: a page lost, owned twice or written while shared shows at once.
class RandomOperations {
 public:
  RandomOperations(int num_pages, int page_size, int window, unsigned seed)
      : pool_(num_pages),
        cache_(&pool_, page_size, {{window}}),
        memory_(static_cast<size_t>(num_pages * page_size), -1),
        page_size_(page_size),
        window_(window),
        random_(seed) {}

  void run(int64_t num_operations) {
    for (int64_t i = 0; i < num_operations; ++i) {
      step(i);
      if (i % 4096 == 0) {
        pool_.check_consistency();
        for (const Owner& owner : owners_) verify(owner);
      }
    }
    for (const Owner& owner : owners_) verify(owner);
    owners_.clear();
    copies_.clear();
    while (!steps_.empty()) end_oldest_step();
    pool_.check_consistency();
    EXPECT_EQ(pool_.num_used(), 0);
    EXPECT_EQ(pool_.num_retired(), 0);
    EXPECT_EQ(pool_.num_available(), pool_.num_pages());
    cache_.clear();
    EXPECT_EQ(cache_.num_entries(), 0);
    EXPECT_EQ(pool_.num_free(), pool_.num_pages());
    EXPECT_GT(num_copies_, num_operations / 1000);
    EXPECT_GT(num_hits_, num_operations / 1000);
    EXPECT_GT(num_refusals_, 0);
  }

 private:
  struct Owner {
    PageTable table;
    std::vector<int32_t> tags;
    int64_t first_visible = 0;
    size_t num_inserted = 0;
    PrefixCache::Node node;
  };

  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  void step(int64_t i) {
    if (owners_.empty() || below(50) == 0) {
      owners_.push_back({PageTable(&pool_, page_size_, window_), {}, 0, 0, {}});
      return;
    }
    const size_t index = static_cast<size_t>(below(static_cast<int>(owners_.size())));
    Owner& owner = owners_[index];
    switch (below(10)) {
      case 0:  // fork
        if (owners_.size() < 40) {
          Owner child{owner.table.fork(), owner.tags, owner.first_visible, owner.num_inserted, owner.node};
          owners_.push_back(std::move(child));
        }
        break;
      case 1: {  // truncate, no further than what is still there
        const int64_t lowest = owner.first_visible == 0 ? 0 : owner.first_visible + window_;
        const int64_t length = static_cast<int64_t>(owner.tags.size());
        if (length > lowest) cut(owner, length - below(static_cast<int>(std::min<int64_t>(length - lowest, 40)) + 1));
        break;
      }
      case 2:  // free
        if (below(3) == 0) {
          verify(owner);
          owners_.erase(owners_.begin() + static_cast<int64_t>(index));
        }
        break;
      case 3:  // what a window leaves behind
        if (window_ > 0 && !owner.tags.empty()) {
          const int64_t position = static_cast<int64_t>(owner.tags.size());
          owner.table.release_behind(position);
          owner.first_visible = std::max(owner.first_visible, position - window_ + 1);
        }
        break;
      case 4:  // steps in flight
        if (steps_.size() < 3 && below(2) == 0) {
          steps_.push_back(pool_.begin_step());
        } else if (!steps_.empty()) {
          end_oldest_step();
        }
        break;
      case 5:  // keep full pages, or begin again from what is kept
        if (below(2) == 0) {
          insert(owner);
        } else {
          start_from_cache(owner);
        }
        break;
      default:
        append(owner, 1 + below(below(4) == 0 ? 3 * page_size_ : 3), i);
    }
  }

  void append(Owner& owner, int count, int64_t i) {
    const int64_t old_length = static_cast<int64_t>(owner.tags.size());
    if (old_length + count > 30 * page_size_) return;
    const int expected = owner.table.pages_to_grow(old_length + count);
    const int available = pool_.num_available();
    if (!owner.table.grow(old_length + count, &copies_)) {
      EXPECT_GT(expected, available);
      ++num_refusals_;
      return;
    }
    EXPECT_EQ(pool_.num_available(), available - expected);
    for (const PageCopyRequest& copy : copies_) {
      for (int t = 0; t < page_size_; ++t) {
        memory_[static_cast<size_t>(copy.to * page_size_ + t)] =
            memory_[static_cast<size_t>(copy.from.page() * page_size_ + t)];
      }
      ++num_copies_;
    }
    copies_.clear();
    for (int c = 0; c < count; ++c) {
      // Few different tags, so that prefixes repeat.
      const int32_t tag = below(8) == 0 ? static_cast<int32_t>(i % 1000000007) : static_cast<int32_t>(old_length % 3);
      owner.tags.push_back(tag);
      memory_[static_cast<size_t>(owner.table.slot(old_length + c))] = tag;
    }
  }

  void cut(Owner& owner, int64_t length) {
    owner.table.truncate(length);
    owner.tags.resize(static_cast<size_t>(length));
    if (owner.num_inserted > static_cast<size_t>(length / page_size_)) {
      owner.num_inserted = 0;
      owner.node = PrefixCache::Node{};
    }
  }

  void insert(Owner& owner) {
    while ((owner.num_inserted + 1) * static_cast<size_t>(page_size_) <= owner.tags.size()) {
      const auto tokens =
          std::span<const int32_t>(owner.tags)
              .subspan(owner.num_inserted * static_cast<size_t>(page_size_), static_cast<size_t>(page_size_));
      owner.node =
          cache_.insert({}, owner.node, tokens, std::span(&owner.table, 1), static_cast<int64_t>(owner.num_inserted));
      ++owner.num_inserted;
      if (owner.node == PrefixCache::kGone) break;
    }
  }

  void start_from_cache(Owner& owner) {
    const std::vector<int32_t> tags = owner.tags;
    owner.table.clear();
    owner.tags.clear();
    owner.first_visible = 0;
    const int64_t length = cache_.find({}, tags, static_cast<int64_t>(tags.size()), &found_, &owner.node);
    EXPECT_EQ(length % page_size_, 0);
    owner.table.adopt(found_[0]);
    found_[0].clear();
    owner.num_inserted = static_cast<size_t>(length / page_size_);
    owner.tags.assign(tags.begin(), tags.begin() + length);
    if (window_ > 0) owner.first_visible = std::max<int64_t>(0, length - window_ + 1);
    if (length > 0) ++num_hits_;
    verify(owner);
  }

  void verify(const Owner& owner) {
    ASSERT_EQ(owner.table.num_tokens(), static_cast<int64_t>(owner.tags.size()));
    for (size_t position = static_cast<size_t>(owner.first_visible); position < owner.tags.size(); ++position) {
      ASSERT_EQ(memory_[static_cast<size_t>(owner.table.slot(static_cast<int64_t>(position)))], owner.tags[position]);
    }
  }

  void end_oldest_step() {
    pool_.end_step(steps_.front());
    steps_.erase(steps_.begin());
  }

  PagePool pool_;
  PrefixCache cache_;
  std::vector<int32_t> memory_;
  int page_size_;
  int window_;
  std::mt19937 random_;
  std::vector<Owner> owners_;
  std::vector<PageCopyRequest> copies_;
  std::vector<int64_t> steps_;
  std::vector<std::vector<PageRef>> found_;
  int64_t num_copies_ = 0;
  int64_t num_hits_ = 0;
  int64_t num_refusals_ = 0;
};

TEST(PageTable, AMillionRandomOperationsLoseNothing) {
  RandomOperations(200, 16, 0, 1).run(600000);
  RandomOperations(120, 8, 0, 2).run(200000);
  RandomOperations(90, 8, 20, 3).run(200000);
}

// Chat-like traffic: prompt and output lengths log-normal (medians 160 and 210, sigma 1), 64 sequences at a time, a
// token a step each. Theory: a sequence wastes (page_size - 1) / 2 slots of its last page on average, of the E[prompt]
// + E[output²] / (2 E[output]) tokens that a sequence holds on average over the steps.
TEST(PageTable, UsefulShareOfPagesIsAsTheorySays) {
  const int page_size = 16;
  PagePool pool(64 * 8192 / page_size);
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> prompt_length(std::log(160.0), 1.0);
  std::lognormal_distribution<double> output_length(std::log(210.0), 1.0);
  struct Sequence {
    PageTable table;
    int64_t end;
  };
  std::vector<Sequence> sequences;
  std::vector<PageCopyRequest> copies;
  double share_sum = 0.0;
  const int num_steps = 20000;
  const int num_warm_up = 4000;
  for (int step = 0; step < num_steps; ++step) {
    while (sequences.size() < 64) {
      const int64_t prompt = std::clamp<int64_t>(std::llround(prompt_length(random)), 1, 4000);
      const int64_t output = std::clamp<int64_t>(std::llround(output_length(random)), 1, 4000);
      sequences.push_back({PageTable(&pool, page_size, 0), prompt + output});
      ASSERT_TRUE(sequences.back().table.grow(prompt, &copies));
    }
    int64_t num_useful = 0;
    for (Sequence& sequence : sequences) {
      ASSERT_TRUE(sequence.table.grow(sequence.table.num_tokens() + 1, &copies));
      num_useful += sequence.table.num_tokens();
    }
    if (step >= num_warm_up) {
      share_sum += static_cast<double>(num_useful) / (static_cast<double>(pool.num_used()) * page_size);
    }
    std::erase_if(sequences, [](const Sequence& s) { return s.table.num_tokens() >= s.end; });
  }
  const double share = share_sum / (num_steps - num_warm_up);
  const double mean_prompt = 160.0 * std::exp(0.5);
  const double mean_output_seen = 210.0 * std::exp(1.5) / 2.0;
  const double mean_tokens = mean_prompt + mean_output_seen;
  const double theory = mean_tokens / (mean_tokens + (page_size - 1) / 2.0);
  std::printf("useful share of KV bytes: %.4f, theory %.4f\n", share, theory);
  EXPECT_GE(share, 0.97);
  EXPECT_NEAR(share, theory, 0.003);
}

}  // namespace
}  // namespace quire
