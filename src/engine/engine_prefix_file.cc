// Keeping the prefix cache in a file between runs. The file's key lists all that K and V depend on; a run in which
// anything of it is different starts with an empty cache.
#include <algorithm>
#include <sstream>

#include "base/mapped_file.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/prefix_file.h"
#include "kv/prefix_cache.h"

namespace quire {

namespace {

void describe(std::ostream& out, const char* name, const RopeConfig& rope) {
  out << name << ": theta " << rope.theta << ", " << rope.rotary_dim << " of a head, "
      << rope_scaling_name(rope.scaling) << " " << rope.factor << " " << rope.original_context << " "
      << rope.low_frequency_factor << " " << rope.high_frequency_factor << " " << rope.beta_fast << " "
      << rope.beta_slow << " " << rope.truncates_correction_range << " " << rope.attention_factor << "\n";
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
  out << "compute: " << (options_.compute == Compute::kF32 ? "f32" : "auto") << "\n";
  out << "kernels: " << ops_.numerics() << "\n";
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

Status Engine::save_prefix_cache(const std::string& path) {
  CHECK(!is_telling_);
  if (prefix_cache_ == nullptr) return invalid_argument("there is no prefix cache to save: it is off");
  CHECK(!options_.model_hash.empty());
  const std::vector<PrefixCache::SavedEntry> entries = prefix_cache_->saved_entries();
  const size_t page_bytes = static_cast<size_t>(memory_plan().page_bytes);
  const size_t num_groups = runner_->kv_groups().size();
  ASSIGN_OR_RETURN(const auto writer,
                   PrefixFileWriter::create(path, {.key = prefix_file_key(),
                                                   .page_size = options_.page_size,
                                                   .num_groups = static_cast<int>(num_groups),
                                                   .page_bytes = memory_plan().page_bytes,
                                                   .num_entries = static_cast<int64_t>(entries.size())}));
  std::vector<std::byte> bytes(num_groups * page_bytes);
  for (const PrefixCache::SavedEntry& entry : entries) {
    PrefixFileEntry saved = {.parent = entry.parent,
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
  return writer->finish();
}

Result<int64_t> Engine::load_prefix_cache(const std::string& path) {
  CHECK(!is_telling_);
  if (prefix_cache_ == nullptr) return invalid_argument("there is no prefix cache to fill: it is off");
  CHECK(!options_.model_hash.empty());
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
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
  int64_t num_tokens = 0;
  if (const Status status = load_prefix_entries(reader, &num_tokens); !status.is_ok()) {
    prefix_cache_->clear();
    return status;
  }
  return num_tokens;
}

Status Engine::load_prefix_entries(PrefixFileReader& reader, int64_t* num_tokens) {
  std::vector<PrefixCache::Node> nodes;
  // Given back from the last to the first, so that of a chain the end is taken for other uses before its beginning.
  std::vector<PageRef> held;
  Status status;
  for (int64_t i = 0; i < reader.header().num_entries; ++i) {
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
    *num_tokens += options_.page_size;
    held.insert(held.end(), std::make_move_iterator(fresh.begin()), std::make_move_iterator(fresh.end()));
  }
  while (!held.empty()) held.pop_back();
  return status;
}

}  // namespace quire
