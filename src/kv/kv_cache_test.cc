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

class KvCacheOfCodes : public testing::TestWithParam<DType> {};

TEST_P(KvCacheOfCodes, ScalesStandBesideTheirCodes) {
  const std::vector<KvGroup> groups = {{.layers = {0, 1, 2}, .num_kv_heads = 2, .head_dim = 8, .dtype = GetParam()}};
  constexpr int kPageSize = 16;
  constexpr int kPages = 3;
  const int64_t page_bytes = KvCache::page_bytes(groups, kPageSize);
  EXPECT_EQ(groups[0].bytes_per_token(), 3 * 2 * 2 * (8 + 2));
  KvCache cache(host_buffer(page_bytes * kPages), groups, kPageSize, kPages);
  std::set<const char*> seen;
  const auto take = [&](const char* first, int64_t num_bytes, int page) {
    for (int64_t i = 0; i < num_bytes; ++i) EXPECT_TRUE(seen.insert(first + i).second);
    const int64_t offset = first - static_cast<char*>(cache.base());
    EXPECT_EQ(offset / page_bytes, page);
    EXPECT_EQ((offset + num_bytes - 1) / page_bytes, page);
  };
  for (int layer = 0; layer < 3; ++layer) {
    const PagedKv& kv = cache.layer_kv()[static_cast<size_t>(layer)];
    for (int page = 0; page < kPages; ++page) {
      for (int head = 0; head < 2; ++head) {
        for (int token = 0; token < kPageSize; ++token) {
          const int64_t row = page * kv.page_stride + head * kv.head_stride + token * kv.token_stride;
          const int64_t scale = page * kv.scale_page_stride + head * kPageSize + token;
          take(static_cast<char*>(kv.k) + row, 8, page);
          take(static_cast<char*>(kv.v) + row, 8, page);
          take(static_cast<char*>(kv.k_scales) + 2 * scale, 2, page);
          take(static_cast<char*>(kv.v_scales) + 2 * scale, 2, page);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KvCache, KvCacheOfCodes, testing::Values(DType::kF8E4M3, DType::kI8));

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
