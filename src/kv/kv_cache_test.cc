// How pages are cut from the block: no two elements share a byte, and a page of a head is one run.
#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace quire {
namespace {

DeviceBuffer host_buffer(int64_t num_bytes) {
  return DeviceBuffer(std::aligned_alloc(256, static_cast<size_t>((num_bytes + 255) / 256 * 256)), num_bytes, Device{},
                      [](void* data) { std::free(data); });
}

TEST(KvCache, NoTwoElementsOverlap) {
  const std::vector<KvGroup> groups = {
      {.kind = KvKind::kSlidingWindow, .window = 8, .layers = {0, 2}, .num_kv_heads = 2, .head_dim = 8},
      {.kind = KvKind::kFull, .layers = {1}, .num_kv_heads = 2, .head_dim = 8}};
  for (const int page_size : {8, 16}) {
    const int num_pages = 3;
    const int64_t page_bytes = KvCache::page_bytes(groups, page_size);
    EXPECT_EQ(page_bytes % 64, 0);
    KvCache cache(host_buffer(page_bytes * num_pages), groups, page_size, num_pages);
    EXPECT_EQ(std::vector<int>(cache.layer_group().begin(), cache.layer_group().end()), (std::vector<int>{0, 1, 0}));
    for (size_t g = 0; g < groups.size(); ++g) {
      std::set<const char*> seen;
      for (const int layer : groups[g].layers) {
        const PagedKv& kv = cache.layer_kv()[static_cast<size_t>(layer)];
        EXPECT_EQ(kv.token_stride, kv.head_dim);
        for (void* base : {kv.k, kv.v}) {
          for (int page = 0; page < num_pages; ++page) {
            for (int head = 0; head < 2; ++head) {
              for (int element = 0; element < page_size * kv.head_dim; ++element) {
                const char* address =
                    static_cast<char*>(base) + 2 * (page * kv.page_stride + head * kv.head_stride + element);
                EXPECT_TRUE(seen.insert(address).second);
                const int64_t offset = address - static_cast<char*>(cache.base());
                EXPECT_EQ(offset / page_bytes, page);
              }
            }
          }
        }
      }
    }
  }
}

TEST(KvCache, ImpossibleGroupsAreRefused) {
  const KvGroup good{.layers = {0, 1}, .num_kv_heads = 1, .head_dim = 8};
  EXPECT_TRUE(KvCache::validate_groups(std::vector<KvGroup>{good}, 2).is_ok());
  EXPECT_FALSE(KvCache::validate_groups(std::vector<KvGroup>{good}, 3).is_ok());
  EXPECT_FALSE(KvCache::validate_groups(std::vector<KvGroup>{good, good}, 2).is_ok());
  KvGroup sliding = good;
  sliding.kind = KvKind::kSlidingWindow;
  EXPECT_FALSE(KvCache::validate_groups(std::vector<KvGroup>{sliding}, 2).is_ok());
}

}  // namespace
}  // namespace quire
