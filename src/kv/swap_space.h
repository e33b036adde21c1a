// The second pool of pages, in host memory: where the pages of a sequence that had to give way are kept until it runs
// again. It knows numbers only; the copies that it asks for are carried out by engine/model_runner. Full pages that
// several sequences share are kept once, and come back without a copy where the device still has them. Used by the
// scheduler, on the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_pool.h"
#include "kv/page_table.h"

namespace quire {

// Copy device page `device_page` to host page `host_page`, or back. Holds the host page until then.
struct SwapCopy {
  PageRef host_page;
  int32_t device_page = -1;
};

// What a page table was, and where its pages lie now. Holds host pages only.
struct SwappedTable {
  int64_t num_tokens = 0;
  int window = 0;
  std::vector<PageRef> host_pages;  // a logical page each; not given: left behind by the window
};

class SwapSpace {
 public:
  SwapSpace(PagePool* device_pool, int page_size, int num_host_pages);

  // Host pages that swapping these tables out would take.
  int pages_to_swap_out(std::span<const PageTable> tables) const;

  // Fills `swapped` and asks for the copies, or does nothing and returns false where the pool is full. The caller then
  // clears the tables: their pages may be given to others at once, so the copies come before anything else in the step.
  [[nodiscard]] bool swap_out(std::span<const PageTable> tables, std::vector<SwappedTable>* swapped,
                              std::vector<SwapCopy>* copies);

  // Shares in the pages that the device still has, in their places: `pages[group][logical page]`; not given where a
  // page must be copied, or was left behind. Returns how many must be copied.
  int find_on_device(std::span<const SwappedTable> swapped, std::vector<std::vector<PageRef>>* pages) const;

  // Gives every page that find_on_device has not found one of its own, and asks for the copies. The device pool has
  // that many. The tables are empty before.
  void swap_in(std::span<const SwappedTable> swapped, std::vector<std::vector<PageRef>> pages,
               std::span<PageTable> tables, std::vector<SwapCopy>* copies);

  const PagePool& pool() const { return host_pool_; }

 private:
  // The same content in the other pool, as long as both ids are still those of their pages.
  struct Twin {
    uint64_t own_content_id = 0;
    int32_t page = -1;
    uint64_t content_id = 0;
  };

  bool is_full(const PageTable& table, int64_t logical_page) const;
  int32_t host_twin(int32_t device_page) const;  // -1: none
  int32_t device_twin(int32_t host_page) const;
  void pair(int32_t device_page, int32_t host_page);

  PagePool* device_pool_;
  int page_size_;
  PagePool host_pool_;
  std::vector<Twin> host_twins_;    // per device page; of full pages, which nobody writes
  std::vector<Twin> device_twins_;  // per host page
};

}  // namespace quire
