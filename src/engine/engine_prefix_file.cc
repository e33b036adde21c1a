// Keeping the prefix cache in a file between runs. The file's key lists all that K and V depend on; a run in which
// anything of it is different starts with an empty cache.
#include <algorithm>
#include <sstream>

#include "base/format_bytes.h"
#include "base/mapped_file.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/prefix_file.h"
#include "kv/prefix_cache.h"

namespace quire {

namespace {

const char* compute_name(Compute compute) {
  switch (compute) {
    case Compute::kAuto:
      return "auto";
    case Compute::kF32:
      return "f32";
    case Compute::kBF16:
      return "bf16";
  }
  return "";
}

void describe(std::ostream& out, const char* name, const RopeConfig& rope) {
  out << name << ": theta " << rope.theta << ", " << rope.rotary_dim << " of a head, "
      << rope_scaling_name(rope.scaling) << " " << rope.factor << " " << rope.original_context << " "
      << rope.low_frequency_factor << " " << rope.high_frequency_factor << " " << rope.beta_fast << " "
      << rope.beta_slow << " " << rope.truncates_correction_range << " " << rope.attention_factor << "\n";
}

int num_pages_of(const PrefixCache::SavedEntry& entry) {
  return static_cast<int>(
      std::count_if(entry.pages.begin(), entry.pages.end(), [](int32_t page) { return page >= 0; }));
}

// Which entries `max_bytes` have room for: the newest ones, each with all that it follows.
std::vector<bool> choose_newest(std::span<const PrefixCache::SavedEntry> entries, const PrefixFileHeader& header,
                                int64_t max_bytes) {
  std::vector<bool> is_chosen(entries.size());
  int64_t num_bytes = PrefixFileWriter::num_bytes_of(header);
  for (size_t last = entries.size(); last-- > 0;) {
    int64_t chain_bytes = 0;
    const auto next_of = [&](int64_t i) { return int64_t{entries[static_cast<size_t>(i)].parent}; };
    const auto is_new = [&](int64_t i) { return i >= 0 && !is_chosen[static_cast<size_t>(i)]; };
    for (int64_t i = static_cast<int64_t>(last); is_new(i); i = next_of(i)) {
      const PrefixCache::SavedEntry& entry = entries[static_cast<size_t>(i)];
      chain_bytes += PrefixFileWriter::num_bytes_of_entry(header, entry.scope.salt, num_pages_of(entry));
    }
    if (num_bytes + chain_bytes > max_bytes) break;
    num_bytes += chain_bytes;
    for (int64_t i = static_cast<int64_t>(last); is_new(i); i = next_of(i)) is_chosen[static_cast<size_t>(i)] = true;
  }
  return is_chosen;
}

}  // namespace

std::string Engine::prefix_file_key() const {
  const ModelConfig& config = model_.config();
  std::ostringstream out;
  out.precision(17);
  out << "model: " << options_.model_hash << "\n";
  out << "KV layout: pages of " << options_.page_size << " tokens";
  for (const KvGroup& group : runner_->kv_groups()) {
    out << "; window " << group.window << ", " << group.num_kv_heads << " heads of " << group.head_dim << " "
        << dtype_name(group.dtype) << ", layers";
    for (const int layer : group.layers) out << " " << layer;
  }
  out << "\nactivations: " << dtype_name(model_.activation_dtype()) << "\n";
  out << "compute: " << compute_name(options_.compute) << "\n";
  out << "kernels: " << ops_.numerics() << (options_.shares_drawn_pages ? "" : ", of prompts alone") << "\n";
  // Longrope's factors depend on the longest context that is served.
  out << "rope context: "
      << (config.rope.scaling == RopeScaling::kLongRope && options_.max_model_len > config.rope.original_context
              ? "long"
          : config.rope.scaling == RopeScaling::kLongRope && options_.max_model_len > 0 ? "short"
                                                                                        : "own")
      << "\n";
  describe(out, "rope", config.rope);
  describe(out, "rope of windows", config.sliding_rope);
  return out.str();
}

Result<Engine::PrefixFileTokens> Engine::save_prefix_cache(const std::string& path, int64_t max_bytes) {
  CHECK(!is_telling_);
  if (prefix_cache_ == nullptr) return invalid_argument("there is no prefix cache to save: it is off");
  CHECK(!options_.model_hash.empty());
  const std::vector<PrefixCache::SavedEntry> entries = prefix_cache_->saved_entries();
  const size_t page_bytes = static_cast<size_t>(memory_plan().page_bytes);
  const size_t num_groups = runner_->kv_groups().size();
  PrefixFileHeader header = {.key = prefix_file_key(),
                             .page_size = options_.page_size,
                             .num_groups = static_cast<int>(num_groups),
                             .page_bytes = memory_plan().page_bytes};
  const std::vector<bool> is_chosen = choose_newest(entries, header, max_bytes);
  header.num_entries = std::count(is_chosen.begin(), is_chosen.end(), true);
  ASSIGN_OR_RETURN(const auto writer, PrefixFileWriter::create(path, header));
  std::vector<std::byte> bytes(num_groups * page_bytes);
  std::vector<int32_t> place(entries.size(), -1);  // in the file
  int32_t num_written = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!is_chosen[i]) continue;
    const PrefixCache::SavedEntry& entry = entries[i];
    place[i] = num_written++;
    PrefixFileEntry saved = {.parent = entry.parent < 0 ? -1 : place[static_cast<size_t>(entry.parent)],
                             .adapter_id = entry.scope.adapter_id,
                             .salt = entry.scope.salt,
                             .tokens = {entry.tokens.begin(), entry.tokens.end()},
                             .pages = {}};
    for (size_t g = 0; g < num_groups; ++g) {
      const auto page = std::span(bytes).subspan(g * page_bytes, page_bytes);
      if (entry.pages[g] >= 0) runner_->read_page(entry.pages[g], page);
      saved.pages.push_back(entry.pages[g] >= 0 ? std::span<const std::byte>(page) : std::span<const std::byte>());
    }
    RETURN_IF_ERROR(writer->add(saved));
  }
  RETURN_IF_ERROR(writer->finish());
  const int64_t num_left_out = static_cast<int64_t>(entries.size()) - num_written;
  return PrefixFileTokens{.num_tokens = int64_t{num_written} * options_.page_size,
                          .num_left_out = num_left_out * options_.page_size};
}

Result<Engine::PrefixFileTokens> Engine::load_prefix_cache(const std::string& path, int64_t max_bytes) {
  CHECK(!is_telling_);
  if (prefix_cache_ == nullptr) return invalid_argument("there is no prefix cache to fill: it is off");
  CHECK(!options_.model_hash.empty());
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  if (file->num_bytes() > max_bytes) {
    return resource_exhausted("it has " + format_bytes(file->num_bytes()) + ", more than the " +
                              format_bytes(max_bytes) + " that it may have");
  }
  ASSIGN_OR_RETURN(PrefixFileReader reader, PrefixFileReader::create(file->bytes()));
  const PrefixFileHeader& header = reader.header();
  if (const std::string key = prefix_file_key(); header.key != key) {
    return invalid_argument("it was written by another model or under other settings: '" +
                            first_difference(key, header.key) + "' differs");
  }
  if (header.page_size != options_.page_size || header.page_bytes != memory_plan().page_bytes ||
      header.num_groups != static_cast<int>(runner_->kv_groups().size())) {
    return invalid_argument("its pages have another layout");
  }
  PrefixFileTokens tokens;
  if (const Status status = load_prefix_entries(reader, &tokens); !status.is_ok()) {
    prefix_cache_->clear();
    return status;
  }
  return tokens;
}

Status Engine::load_prefix_entries(PrefixFileReader& reader, PrefixFileTokens* tokens) {
  std::vector<PrefixCache::Node> nodes;
  // Given back from the last to the first, so that of a chain the end is taken for other uses before its beginning.
  std::vector<PageRef> held;
  Status status;
  // Once the pages are full the rest is not even read, however much it is.
  for (int64_t i = 0; i < reader.header().num_entries && pool_->num_free() > 0; ++i) {
    Result<PrefixFileEntry> read = reader.next();
    if (!read.is_ok()) {
      status = read.status();
      break;
    }
    const PrefixFileEntry& entry = read.value();
    const PrefixCache::Node parent = entry.parent < 0 ? PrefixCache::Node{} : nodes[static_cast<size_t>(entry.parent)];
    nodes.push_back(PrefixCache::kGone);
    const int num_pages = static_cast<int>(
        std::count_if(entry.pages.begin(), entry.pages.end(), [](const auto& page) { return !page.empty(); }));
    // What does not fit is left out, and with it what follows it.
    if (parent == PrefixCache::kGone || num_pages == 0 || num_pages > pool_->num_free()) continue;
    std::vector<PageRef> fresh;
    const bool has_pages = pool_->alloc(num_pages, &fresh);
    CHECK(has_pages);
    std::vector<PageRef> of_groups(entry.pages.size());
    size_t next = 0;
    for (size_t g = 0; g < entry.pages.size(); ++g) {
      if (entry.pages[g].empty()) continue;
      of_groups[g] = fresh[next++];
      runner_->write_page(of_groups[g].page(), entry.pages[g]);
    }
    nodes.back() = prefix_cache_->insert({entry.adapter_id, entry.salt}, parent, entry.tokens, of_groups);
    tokens->num_tokens += options_.page_size;
    held.insert(held.end(), std::make_move_iterator(fresh.begin()), std::make_move_iterator(fresh.end()));
  }
  while (!held.empty()) held.pop_back();
  tokens->num_left_out = reader.header().num_entries * options_.page_size - tokens->num_tokens;
  return status;
}

}  // namespace quire
