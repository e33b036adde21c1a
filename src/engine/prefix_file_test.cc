// The prefix cache on disk: what comes back is what was kept, and no file, however damaged, does harm.
#include "engine/prefix_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "engine/engine.h"
#include "engine/testing/history_model.h"
#include "ops/backends.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::HistoryModel;
using testing::kPoisonToken;
using testing::RecordingSink;

class PrefixFileTest : public ::testing::Test {
 protected:
  PrefixFileTest() : ops(create_ops({.kind = BackendKind::kReference}).value()) {
    folder = fs::temp_directory_path() / ("quire_prefix_file_test." + std::to_string(::getpid()));
    fs::create_directories(folder);
    path = (folder / "prefixes").string();
  }
  ~PrefixFileTest() override { fs::remove_all(folder); }

  std::unique_ptr<Engine> make(int num_pages = 600, int page_size = 8, const std::string& model_hash = "abc") {
    EngineOptions options;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 32;
    options.page_size = page_size;
    options.compute = Compute::kF32;
    options.model_hash = model_hash;
    options.kv_cache_memory_bytes = int64_t{num_pages} * page_size * 2 * 8 * 4;
    return Engine::create(*ops, model, options).value();
  }

  // Greedy answers to the prompts; each must be what the model says. Returns how many prompt tokens were cached.
  int64_t answer(Engine& engine, const std::vector<std::vector<int32_t>>& prompts, const std::string& salt = "") {
    const int64_t before = engine.stats().num_cached_tokens;
    for (const std::vector<int32_t>& prompt : prompts) {
      const auto sink = std::make_shared<RecordingSink>();
      SamplingParams greedy = {.temperature = 0.0f, .max_tokens = 8, .ignore_eos = true};
      Request request = Request::from_tokens(prompt, greedy, sink);
      request.cache_salt = salt;
      EXPECT_TRUE(engine.add_request(std::move(request)).is_ok());
      while (engine.has_work()) EXPECT_TRUE(engine.step().is_ok());
      EXPECT_EQ(sink->choices[0].token_ids, model.expected_greedy(prompt, 8));
    }
    EXPECT_EQ(engine.stats().num_pages_used, 0);
    return engine.stats().num_cached_tokens - before;
  }

  std::vector<std::vector<int32_t>> make_prompts(int count) {
    std::vector<std::vector<int32_t>> prompts;
    std::vector<int32_t> stem;
    for (int i = 0; i < 40; ++i) stem.push_back(static_cast<int32_t>(random() % 59));
    for (int p = 0; p < count; ++p) {
      std::vector<int32_t> prompt(stem.begin(), stem.begin() + static_cast<int64_t>(random() % 40));
      for (unsigned i = 0; i < 1 + random() % 60; ++i) prompt.push_back(static_cast<int32_t>(random() % 59));
      prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

  std::string read_file() {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_file(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  std::unique_ptr<Ops> ops;
  HistoryModel model;
  fs::path folder;
  std::string path;
  std::mt19937 random{3};
};

TEST_F(PrefixFileTest, PrefixesOutliveTheProcess) {
  const auto prompts = make_prompts(20);
  auto first = make();
  answer(*first, prompts);
  answer(*first, {prompts[0]}, "salted");
  ASSERT_TRUE(first->save_prefix_cache(path).is_ok());
  // A chain never loses its beginning, so a second pass finds the same in both.
  const int64_t again = answer(*first, prompts);
  auto second = make();
  const auto loaded = second->load_prefix_cache(path);
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
  EXPECT_GT(loaded.value().num_tokens, 0);
  EXPECT_EQ(second->stats().num_pages_used, 0);
  EXPECT_GT(second->stats().num_pages_cached, 0);
  EXPECT_EQ(answer(*second, prompts), again);
  EXPECT_GT(answer(*second, {prompts[0]}, "salted"), 0);
  EXPECT_EQ(answer(*second, {prompts[0]}, "other salt"), 0);
  // Nothing is left of the temporary file.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(PrefixFileTest, APoolThatIsSmallerTakesWhatFits) {
  const auto prompts = make_prompts(20);
  auto first = make();
  answer(*first, prompts);
  ASSERT_TRUE(first->save_prefix_cache(path).is_ok());
  auto small = make(40);
  const auto loaded = small->load_prefix_cache(path);
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
  EXPECT_GT(loaded.value().num_tokens, 0);
  answer(*small, prompts);
  // Into a cache that has the same already.
  ASSERT_TRUE(first->load_prefix_cache(path).is_ok());
  answer(*first, prompts);
}

// What does not fit is left out, oldest first, and told; what is left of a file can be used.
TEST_F(PrefixFileTest, TheFileIsNoLargerThanItMay) {
  const auto prompts = make_prompts(20);
  auto first = make();
  answer(*first, prompts);
  const auto whole = first->save_prefix_cache(path);
  ASSERT_TRUE(whole.is_ok());
  EXPECT_EQ(whole.value().num_left_out, 0);
  const int64_t num_bytes = static_cast<int64_t>(fs::file_size(path));
  // Of exactly this size it may be.
  EXPECT_EQ(first->save_prefix_cache(path, num_bytes).value().num_left_out, 0);
  EXPECT_EQ(make()->load_prefix_cache(path, num_bytes).value().num_tokens, whole.value().num_tokens);
  auto refused = make();
  const auto refusal = refused->load_prefix_cache(path, num_bytes - 1);
  ASSERT_FALSE(refusal.is_ok());
  EXPECT_NE(refusal.status().message().find("more than"), std::string::npos) << refusal.status().message();
  EXPECT_EQ(refused->stats().num_pages_cached, 0);

  for (const int64_t limit : {num_bytes - 1, num_bytes / 2, num_bytes / 10, int64_t{2000}, int64_t{0}}) {
    const auto saved = first->save_prefix_cache(path, limit);
    ASSERT_TRUE(saved.is_ok()) << saved.status().message();
    EXPECT_EQ(saved.value().num_tokens + saved.value().num_left_out, whole.value().num_tokens);
    EXPECT_GT(saved.value().num_left_out, 0);
    if (limit > 0) {
      EXPECT_LE(static_cast<int64_t>(fs::file_size(path)), limit);
    }
    auto second = make();
    EXPECT_EQ(second->load_prefix_cache(path).value().num_tokens, saved.value().num_tokens);
    const int64_t num_found = answer(*second, {prompts.back()});
    if (limit >= num_bytes / 2) {
      EXPECT_EQ(num_found, (static_cast<int64_t>(prompts.back().size()) - 1) / 8 * 8);  // the newest
    }
  }
  // A pool that is full reads no further: what comes then may be anything.
  ASSERT_TRUE(first->save_prefix_cache(path).is_ok());
  std::string bytes = read_file();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(bytes);
  auto small = make(40);
  const auto loaded = small->load_prefix_cache(path);
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
  EXPECT_EQ(loaded.value().num_tokens + loaded.value().num_left_out, whole.value().num_tokens);
  EXPECT_GT(loaded.value().num_left_out, 0);
  answer(*small, prompts);
}

TEST_F(PrefixFileTest, AnotherModelOrLayoutIsRefused) {
  auto first = make();
  answer(*first, make_prompts(3));
  ASSERT_TRUE(first->save_prefix_cache(path).is_ok());
  const auto refusal = [&](std::unique_ptr<Engine> engine) {
    const auto loaded = engine->load_prefix_cache(path);
    EXPECT_EQ(engine->stats().num_pages_cached, 0);
    return loaded.is_ok() ? "none" : loaded.status().message();
  };
  EXPECT_NE(refusal(make(600, 8, "abd")).find("'model'"), std::string::npos);
  EXPECT_NE(refusal(make(600, 16)).find("'KV layout'"), std::string::npos);
  path += ".missing";
  EXPECT_EQ(make()->load_prefix_cache(path).status().code(), StatusCode::kNotFound);
}

TEST_F(PrefixFileTest, WrongContentsAreNeverSaved) {
  auto engine = make();
  std::vector<int32_t> prompt(40, 7);
  prompt[3] = kPoisonToken;
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(engine->add_request(Request::from_tokens(prompt, {.max_tokens = 5}, sink)).is_ok());
  while (engine->has_work()) ASSERT_TRUE(engine->step().is_ok());
  EXPECT_EQ(sink->choices[0].finish_reason, FinishReason::kError);
  ASSERT_TRUE(engine->save_prefix_cache(path).is_ok());
  EXPECT_EQ(make()->load_prefix_cache(path).value().num_tokens, 0);
}

// Cut off anywhere and with any byte changed: refused with a message, and the engine goes on with an empty cache.
TEST_F(PrefixFileTest, DamagedFilesAreRefused) {
  const auto prompts = make_prompts(2);
  auto first = make();
  answer(*first, prompts);
  ASSERT_TRUE(first->save_prefix_cache(path).is_ok());
  const std::string good = read_file();
  auto engine = make();
  const auto expect_refused = [&](const std::string& bytes, size_t place) {
    write_file(bytes);
    const auto loaded = engine->load_prefix_cache(path);
    EXPECT_FALSE(loaded.is_ok()) << place;
    EXPECT_FALSE(loaded.status().message().empty());
    EXPECT_EQ(engine->stats().num_pages_cached, 0) << place;
  };
  // Every place of the beginning, and places all over the rest.
  for (size_t i = 0; i < good.size(); i += i < 700 ? 1 : 97) {
    expect_refused(good.substr(0, i), i);
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (random() % 8)));
    expect_refused(changed, i);
  }
  answer(*engine, prompts);
  engine = make();
  expect_refused(good + '\0', good.size());  // what follows is nobody's
  expect_refused(good + "more", good.size());
  write_file(good);
  EXPECT_TRUE(engine->load_prefix_cache(path).is_ok());
  ASSERT_TRUE(make()->save_prefix_cache(path).is_ok());
  EXPECT_TRUE(make()->load_prefix_cache(path).is_ok());
  engine->clear_prefix_cache();
  expect_refused(read_file() + '\0', 0);  // of no entries
}

// Whatever a wrong name leads to stays as it is: only a file of prefixes, or an empty one, makes room.
TEST_F(PrefixFileTest, OtherFilesAreNeverReplaced) {
  auto engine = make();
  answer(*engine, make_prompts(3));
  const auto expect_kept = [&](const std::string& where, const std::string& word) {
    for (const Status& status : {find_replaceable_file(where).status(), engine->save_prefix_cache(where).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << where;
      EXPECT_NE(status.message().find(word), std::string::npos) << where << ": " << status.message();
    }
  };
  for (const std::string text : {"notes", "QUIREK", "GGUF and so on, a model of many bytes"}) {
    write_file(text);
    expect_kept(path, "no file of cached prefixes");
    EXPECT_EQ(read_file(), text);
  }
  const std::string text = read_file();
  const std::string link = (folder / "link").string();
  fs::create_symlink(path, link);
  expect_kept(link, "no file of cached prefixes");
  EXPECT_EQ(read_file(), text);
  expect_kept(folder.string(), "is a folder");
  expect_kept(folder.string() + "/", "folder");
  expect_kept((folder / "missing").string() + "/", "folder");
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_kept(pipe, "not a regular file");
  fs::remove(path);
  expect_kept(link, "leads to no file");
  EXPECT_TRUE(fs::is_symlink(link));

  // What is ours, of whatever version, and what is empty makes room, also behind a link, which stays one.
  for (const std::string old : {"", "QUIREKV0 of old"}) {
    write_file(old);
    ASSERT_TRUE(engine->save_prefix_cache(link).is_ok());
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_TRUE(make()->load_prefix_cache(path).is_ok());
  }
  // Something that comes while the file is written.
  const PrefixFileHeader header = {.key = "k: v\n", .page_size = 8, .num_groups = 1, .page_bytes = 64};
  auto writer = PrefixFileWriter::create(path, header).value();
  write_file("notes");
  EXPECT_FALSE(writer->finish().is_ok());
  EXPECT_EQ(read_file(), "notes");
  // Under the name of the temporary file: what is ours goes, what is not stays.
  fs::remove(path);
  const std::string temporary = path + ".new." + std::to_string(::getpid());
  std::ofstream(temporary) << "QUIREKV1 cut off";
  EXPECT_TRUE(engine->save_prefix_cache(path).is_ok());
  std::ofstream(temporary) << "notes";
  EXPECT_FALSE(engine->save_prefix_cache(path).is_ok());
  EXPECT_EQ(fs::file_size(temporary), 5u);
}

// With checksums that hold, so that the reader itself is what refuses.
TEST_F(PrefixFileTest, HostileFilesAreRefused) {
  const PrefixFileHeader header = {
      .key = "k: v\n", .page_size = 8, .num_groups = 2, .page_bytes = 64, .num_entries = 3};
  const std::vector<std::byte> page(64);
  const PrefixFileEntry good = {
      .parent = -1, .adapter_id = 0, .salt = "", .tokens = std::vector<int32_t>(8), .pages = {page, {}}};
  const auto write = [&](const PrefixFileHeader& to_write, const std::vector<int32_t>& parents) {
    auto writer = PrefixFileWriter::create(path, to_write).value();
    for (const int32_t parent : parents) {
      PrefixFileEntry entry = good;
      entry.parent = parent;
      ASSERT_TRUE(writer->add(entry).is_ok());
    }
    ASSERT_TRUE(writer->finish().is_ok());
  };
  const auto num_good = [&] {
    const std::string bytes = read_file();
    auto reader = PrefixFileReader::create(std::as_bytes(std::span(bytes)));
    if (!reader.is_ok()) return -1;
    int count = 0;
    for (int64_t i = 0; i < reader.value().header().num_entries && reader.value().next().is_ok(); ++i) ++count;
    return count;
  };
  write(header, {-1, 0, 1});
  EXPECT_EQ(num_good(), 3);
  write(header, {-1, 1, 0});  // its own parent
  EXPECT_EQ(num_good(), 1);
  write(header, {-2, 0, 0});
  EXPECT_EQ(num_good(), 0);
  write(header, {-1, 0});  // fewer than it says
  EXPECT_EQ(num_good(), 2);
  for (PrefixFileHeader bad : {header, header, header, header, header}) {
    static int which = 0;
    switch (which++) {
      case 0:
        bad.page_size = 0;
        break;
      case 1:
        bad.page_size = 1 << 30;
        break;
      case 2:
        bad.num_groups = 1 << 30;
        break;
      case 3:
        bad.page_bytes = -1;
        break;
      default:
        bad.num_entries = int64_t{1} << 60;
        break;
    }
    write(bad, {-1});
    EXPECT_EQ(num_good(), -1) << which;
  }
}

TEST_F(PrefixFileTest, AFolderThatIsNotThereIsAnError) {
  auto engine = make();
  path = (folder / "missing" / "prefixes").string();
  const Status status = engine->save_prefix_cache(path).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(path), std::string::npos);
}

}  // namespace
}  // namespace quire
