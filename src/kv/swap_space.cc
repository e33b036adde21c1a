// Pairs of pages with the same content, and what to copy where there is none.
#include "kv/swap_space.h"

namespace quire {

SwapSpace::SwapSpace(PagePool* device_pool, int page_size, int num_host_pages)
    : device_pool_(device_pool), page_size_(page_size), host_pool_(num_host_pages) {
  host_twins_.resize(static_cast<size_t>(device_pool->num_pages()));
  device_twins_.resize(static_cast<size_t>(num_host_pages));
}

bool SwapSpace::is_full(const PageTable& table, int64_t logical_page) const {
  return (logical_page + 1) * page_size_ <= table.num_tokens();
}

int32_t SwapSpace::host_twin(int32_t device_page) const {
  const Twin& twin = host_twins_[static_cast<size_t>(device_page)];
  if (twin.page < 0 || !device_pool_->has_content(device_page, twin.own_content_id)) return -1;
  return host_pool_.has_content(twin.page, twin.content_id) ? twin.page : -1;
}

int32_t SwapSpace::device_twin(int32_t host_page) const {
  const Twin& twin = device_twins_[static_cast<size_t>(host_page)];
  if (twin.page < 0 || !host_pool_.has_content(host_page, twin.own_content_id)) return -1;
  return device_pool_->has_content(twin.page, twin.content_id) ? twin.page : -1;
}

void SwapSpace::pair(int32_t device_page, int32_t host_page) {
  const uint64_t device_id = device_pool_->content_id(device_page);
  const uint64_t host_id = host_pool_.content_id(host_page);
  host_twins_[static_cast<size_t>(device_page)] = {device_id, host_page, host_id};
  device_twins_[static_cast<size_t>(host_page)] = {host_id, device_page, device_id};
}

int SwapSpace::pages_to_swap_out(std::span<const PageTable> tables) const {
  int total = 0;
  for (const PageTable& table : tables) {
    for (int64_t i = 0; i < static_cast<int64_t>(table.page_ids().size()); ++i) {
      const int32_t page = table.page_ids()[static_cast<size_t>(i)];
      if (page >= 0 && (!is_full(table, i) || host_twin(page) < 0)) ++total;
    }
  }
  return total;
}

bool SwapSpace::swap_out(std::span<const PageTable> tables, std::vector<SwappedTable>* swapped,
                         std::vector<SwapCopy>* copies) {
  if (pages_to_swap_out(tables) > host_pool_.num_available()) return false;
  swapped->clear();
  for (const PageTable& table : tables) {
    SwappedTable& kept = swapped->emplace_back();
    kept.num_tokens = table.num_tokens();
    kept.window = table.window();
    kept.host_pages.reserve(table.page_ids().size());
    for (int64_t i = 0; i < static_cast<int64_t>(table.page_ids().size()); ++i) {
      const int32_t page = table.page_ids()[static_cast<size_t>(i)];
      if (page < 0) {
        kept.host_pages.emplace_back();
        continue;
      }
      const bool is_full_page = is_full(table, i);
      if (const int32_t twin = is_full_page ? host_twin(page) : -1; twin >= 0) {
        kept.host_pages.push_back(host_pool_.share(twin));
        continue;
      }
      const bool was_there = host_pool_.alloc(1, &kept.host_pages);
      CHECK(was_there);
      copies->push_back({kept.host_pages.back(), page});
      if (is_full_page) pair(page, kept.host_pages.back().page());
    }
  }
  return true;
}

int SwapSpace::find_on_device(std::span<const SwappedTable> swapped, std::vector<std::vector<PageRef>>* pages) const {
  int num_missing = 0;
  pages->resize(swapped.size());
  for (size_t g = 0; g < swapped.size(); ++g) {
    std::vector<PageRef>& found = (*pages)[g];
    found.clear();
    for (const PageRef& host_page : swapped[g].host_pages) {
      const int32_t twin = host_page.is_given() ? device_twin(host_page.page()) : -1;
      found.push_back(twin >= 0 ? device_pool_->share(twin) : PageRef());
      if (host_page.is_given() && twin < 0) ++num_missing;
    }
  }
  return num_missing;
}

void SwapSpace::swap_in(std::span<const SwappedTable> swapped, std::vector<std::vector<PageRef>> pages,
                        std::span<PageTable> tables, std::vector<SwapCopy>* copies) {
  CHECK(pages.size() == swapped.size() && tables.size() == swapped.size());
  std::vector<PageRef> fresh;
  for (size_t g = 0; g < swapped.size(); ++g) {
    const SwappedTable& kept = swapped[g];
    for (size_t i = 0; i < kept.host_pages.size(); ++i) {
      const PageRef& host_page = kept.host_pages[i];
      if (!host_page.is_given() || pages[g][i].is_given()) continue;
      const bool was_there = device_pool_->alloc(1, &fresh);
      CHECK(was_there);
      pages[g][i] = std::move(fresh.back());
      fresh.pop_back();
      copies->push_back({host_page, pages[g][i].page()});
      const bool is_full_page = static_cast<int64_t>(i + 1) * page_size_ <= kept.num_tokens;
      if (is_full_page) pair(pages[g][i].page(), host_page.page());
    }
    tables[g].restore(std::move(pages[g]), kept.num_tokens);
  }
}

}  // namespace quire
