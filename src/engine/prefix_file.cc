#include "engine/prefix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/content_hash.h"

namespace quire {

namespace {

static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

constexpr std::string_view kMagic = "QUIREKV1";
constexpr std::string_view kMagicOfAnyVersion = kMagic.substr(0, 7);
constexpr uint32_t kMaxKeyBytes = 1 << 16;
constexpr uint32_t kMaxSaltBytes = 1 << 20;
constexpr int kMaxPageSize = 256;
constexpr int kMaxGroups = 64;
constexpr int64_t kMaxPageBytes = int64_t{1} << 32;

void put(std::string& buffer, std::span<const std::byte> bytes) {
  buffer.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
template <typename T>
void put_number(std::string& buffer, T value) {
  put(buffer, std::as_bytes(std::span(&value, 1)));
}
void put_text(std::string& buffer, std::string_view text) {
  put_number(buffer, static_cast<uint32_t>(text.size()));
  put(buffer, std::as_bytes(std::span(text)));
}

uint64_t checksum_of(std::span<const std::byte> bytes) {
  ContentHash hash;
  hash.add(bytes);
  return hash.value()[0];
}

Status damaged(const std::string& where) {
  return invalid_argument("the file is damaged or cut off " + where);
}

Status refuse_to_replace(const std::string& path, const std::string& why) {
  return invalid_argument(path + " " + why + ": it stays as it is; name another file");
}

// Whether what lies there, no link, may be replaced.
Status check_replaceable(const std::string& path) {
  // Not blocking, so that a named pipe gives an error instead of waiting for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (file < 0) {
    if (errno == ENOENT) return ok_status();
    return refuse_to_replace(path,
                             std::string("cannot be read, so what it is is not known (") + std::strerror(errno) + ")");
  }
  struct stat info = {};
  const bool is_regular = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode);
  char begin[kMagicOfAnyVersion.size()] = {};
  const ssize_t num_read = is_regular ? ::pread(file, begin, sizeof(begin), 0) : 0;
  ::close(file);
  if (S_ISDIR(info.st_mode)) return refuse_to_replace(path, "is a folder");
  if (!is_regular) return refuse_to_replace(path, "is not a regular file");
  if (num_read == 0 && info.st_size == 0) return ok_status();
  if (num_read == ssize_t{sizeof(begin)} && std::string_view(begin, sizeof(begin)) == kMagicOfAnyVersion) {
    return ok_status();
  }
  return refuse_to_replace(path, "is no file of cached prefixes");
}

// A new file, never through a link; what a process that ended early left under this name goes.
std::FILE* open_new(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wbx");
  if (file != nullptr || errno != EEXIST) return file;
  if (!check_replaceable(path).is_ok() || std::remove(path.c_str()) != 0) {
    errno = EEXIST;
    return nullptr;
  }
  return std::fopen(path.c_str(), "wbx");
}

}  // namespace

Result<std::string> find_replaceable_file(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.ends_with('/')) return invalid_argument(path + " is the name of a folder: name a file in it");
  std::string target = path;
  std::error_code error;
  if (fs::is_symlink(path, error)) {
    target = fs::canonical(path, error).string();
    if (error) return refuse_to_replace(path, "is a link that leads to no file");
  }
  RETURN_IF_ERROR(check_replaceable(target));
  return target;
}

Result<std::unique_ptr<PrefixFileWriter>> PrefixFileWriter::create(const std::string& path,
                                                                   const PrefixFileHeader& header) {
  CHECK(header.key.size() <= kMaxKeyBytes);
  ASSIGN_OR_RETURN(std::string target, find_replaceable_file(path));
  std::string temporary_path = target + ".new." + std::to_string(::getpid());
  std::FILE* file = open_new(temporary_path);
  if (file == nullptr) return unavailable("cannot write " + temporary_path + ": " + std::strerror(errno));
  std::unique_ptr<PrefixFileWriter> writer(new PrefixFileWriter(std::move(target), std::move(temporary_path), file));
  std::string& buffer = writer->buffer_;
  put(buffer, std::as_bytes(std::span(kMagic)));
  put_text(buffer, header.key);
  put_number(buffer, static_cast<uint32_t>(header.page_size));
  put_number(buffer, static_cast<uint32_t>(header.num_groups));
  put_number(buffer, static_cast<uint64_t>(header.page_bytes));
  put_number(buffer, static_cast<uint64_t>(header.num_entries));
  put_number(buffer, checksum_of(std::as_bytes(std::span(buffer))));
  RETURN_IF_ERROR(writer->write(std::as_bytes(std::span(buffer))));
  return writer;
}

int64_t PrefixFileWriter::num_bytes_of(const PrefixFileHeader& header) {
  return static_cast<int64_t>(kMagic.size() + 4 + header.key.size() + 4 + 4 + 8 + 8 + 8);
}

int64_t PrefixFileWriter::num_bytes_of_entry(const PrefixFileHeader& header, std::string_view salt, int num_pages) {
  return 4 + 8 + 4 + static_cast<int64_t>(salt.size()) + 4 * int64_t{header.page_size} + header.num_groups +
         num_pages * header.page_bytes + 8;
}

PrefixFileWriter::~PrefixFileWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(temporary_path_.c_str());
}

Status PrefixFileWriter::fault(const char* what) const {
  return unavailable(std::string(what) + " " + temporary_path_ + ": " + std::strerror(errno));
}

Status PrefixFileWriter::write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) return fault("cannot write");
  return ok_status();
}

Status PrefixFileWriter::add(const PrefixFileEntry& entry) {
  CHECK(entry.salt.size() <= kMaxSaltBytes);
  buffer_.clear();
  put_number(buffer_, entry.parent);
  put_number(buffer_, entry.adapter_id);
  put_text(buffer_, entry.salt);
  put(buffer_, std::as_bytes(std::span(entry.tokens)));
  for (const auto& page : entry.pages) put_number(buffer_, static_cast<uint8_t>(page.empty() ? 0 : 1));
  for (const auto& page : entry.pages) put(buffer_, page);
  put_number(buffer_, checksum_of(std::as_bytes(std::span(buffer_))));
  return write(std::as_bytes(std::span(buffer_)));
}

Status PrefixFileWriter::finish() {
  // What is renamed must be whole on the disk, also after a power cut.
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) return fault("cannot write");
  if (std::fclose(std::exchange(file_, nullptr)) != 0) {
    const Status status = fault("cannot write");
    std::remove(temporary_path_.c_str());
    return status;
  }
  // Writing has taken its time: somebody may have put something else there.
  Status status = check_replaceable(path_);
  if (status.is_ok() && std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    status = fault(("cannot put in the place of " + path_ + " the file").c_str());
  }
  if (!status.is_ok()) std::remove(temporary_path_.c_str());
  return status;
}

// Past the end there is nothing: a mark is set, and zeros are read.
std::span<const std::byte> PrefixFileReader::take(uint64_t num_bytes) {
  if (is_damaged_ || num_bytes > bytes_.size() - position_) {
    is_damaged_ = true;
    return {};
  }
  const auto taken = bytes_.subspan(position_, static_cast<size_t>(num_bytes));
  position_ += static_cast<size_t>(num_bytes);
  return taken;
}

template <typename T>
T PrefixFileReader::take_number() {
  T value{};
  const auto bytes = take(sizeof(T));
  if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

std::string_view PrefixFileReader::take_text(uint32_t most) {
  const uint32_t length = take_number<uint32_t>();
  if (length > most) is_damaged_ = true;
  const auto bytes = take(length);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool PrefixFileReader::take_checksum(size_t begin) {
  const size_t end = position_;
  const uint64_t stored = take_number<uint64_t>();
  return !is_damaged_ && stored == checksum_of(bytes_.subspan(begin, end - begin));
}

Result<PrefixFileReader> PrefixFileReader::create(std::span<const std::byte> bytes) {
  PrefixFileReader reader(bytes);
  const auto magic = reader.take(kMagic.size());
  if (magic.empty() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return invalid_argument("it is no file of cached prefixes, or one of another version");
  }
  PrefixFileHeader& header = reader.header_;
  header.key = reader.take_text(kMaxKeyBytes);
  const uint32_t page_size = reader.take_number<uint32_t>();
  const uint32_t num_groups = reader.take_number<uint32_t>();
  const uint64_t page_bytes = reader.take_number<uint64_t>();
  const uint64_t num_entries = reader.take_number<uint64_t>();
  if (!reader.take_checksum(0)) return damaged("at its beginning");
  // An entry has at least a page.
  if (page_size < 1 || page_size > kMaxPageSize || num_groups < 1 || num_groups > kMaxGroups || page_bytes < 1 ||
      page_bytes > kMaxPageBytes || num_entries > bytes.size() / page_bytes) {
    return damaged("at its beginning");
  }
  if (num_entries == 0 && reader.position_ != bytes.size()) return damaged("at its end: more follows");
  header.page_size = static_cast<int>(page_size);
  header.num_groups = static_cast<int>(num_groups);
  header.page_bytes = static_cast<int64_t>(page_bytes);
  header.num_entries = static_cast<int64_t>(num_entries);
  return reader;
}

Result<PrefixFileEntry> PrefixFileReader::next() {
  CHECK(num_read_ < header_.num_entries);
  const size_t begin = position_;
  PrefixFileEntry entry;
  entry.parent = take_number<int32_t>();
  entry.adapter_id = take_number<int64_t>();
  entry.salt = take_text(kMaxSaltBytes);
  const auto tokens = take(static_cast<uint64_t>(header_.page_size) * sizeof(int32_t));
  const auto has_page = take(static_cast<uint64_t>(header_.num_groups));
  bool is_known = !is_damaged_;
  for (const std::byte has : has_page) {
    is_known = is_known && (has == std::byte{0} || has == std::byte{1});
    entry.pages.push_back(has == std::byte{1} ? take(static_cast<uint64_t>(header_.page_bytes))
                                              : std::span<const std::byte>());
  }
  if (!is_known || !take_checksum(begin) || entry.parent < -1 || entry.parent >= num_read_) {
    is_damaged_ = true;
    return damaged("at page " + std::to_string(num_read_) + " of " + std::to_string(header_.num_entries));
  }
  if (num_read_ + 1 == header_.num_entries && position_ != bytes_.size()) {
    is_damaged_ = true;
    return damaged("at its end: more follows");
  }
  entry.tokens.resize(static_cast<size_t>(header_.page_size));
  std::memcpy(entry.tokens.data(), tokens.data(), tokens.size());
  ++num_read_;
  return entry;
}

std::string first_difference(std::string_view key, std::string_view other_key) {
  while (!key.empty()) {
    const std::string_view line = key.substr(0, key.find('\n'));
    const std::string_view other_line = other_key.substr(0, other_key.find('\n'));
    if (line != other_line) return std::string(line.substr(0, line.find(':')));
    key.remove_prefix(std::min(line.size() + 1, key.size()));
    other_key.remove_prefix(std::min(other_line.size() + 1, other_key.size()));
  }
  return other_key.empty() ? "" : "format";
}

}  // namespace quire
