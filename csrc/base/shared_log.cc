#include "base/shared_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

namespace theseus {
namespace {

constexpr uint64_t kMagic = 0x31474f4c53454854;  // "THESLOG1"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeadBytes = 4096;

// First bytes of the file. The magic is written last: a file without it was never a log.
struct Head {
  std::atomic<uint64_t> magic;
  uint32_t version;
  uint32_t reserved;
  uint64_t log_id;
  uint64_t capacity;  // bytes of records
  std::atomic<uint64_t> count;
  std::atomic<uint32_t> frozen;
};
static_assert(sizeof(Head) <= kHeadBytes && std::atomic<uint64_t>::is_always_lock_free);

struct RecordHead {
  uint32_t length;
  uint32_t crc;
};

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? (value >> 1) ^ 0x82f63b78u : value >> 1;
    table[i] = value;
  }
  return table;
}

// CRC-32C (Castagnoli), reflected. The length comes first, so that a record of zeros is not its own checksum.
uint32_t crc32c(uint32_t length, std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0u;
  const auto add = [&crc](unsigned char byte) { crc = (crc >> 8) ^ kTable[(crc ^ byte) & 0xff]; };
  for (int i = 0; i < 4; ++i) add(static_cast<unsigned char>(length >> (8 * i)));
  for (const char byte : bytes) add(static_cast<unsigned char>(byte));
  return ~crc;
}

uint64_t padded(uint64_t length) { return (sizeof(RecordHead) + length + 7) & ~uint64_t{7}; }

// The whole range, or what errno says; a file that ends before is EIO.
int read_at(int fd, void* data, size_t bytes, uint64_t offset) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0 ? EIO : errno;
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return 0;
}

int write_at(int fd, const void* data, size_t bytes, uint64_t offset) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = pwrite(fd, from, bytes, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put == 0 ? ENOSPC : errno;
    from += put;
    offset += static_cast<uint64_t>(put);
    bytes -= static_cast<size_t>(put);
  }
  return 0;
}

// The record at `offset`, checked; `*end` is where the next one starts.
Status read_record(int fd, uint64_t offset, uint64_t limit, std::string& bytes, uint64_t* end) {
  RecordHead head{};
  int error = offset + sizeof head > limit ? EIO : read_at(fd, &head, sizeof head, offset);
  if (error == 0 && (head.length > kLongestLogRecord || offset + padded(head.length) > limit)) error = EIO;
  if (error == 0) {
    bytes.resize(head.length);
    error = read_at(fd, bytes.data(), bytes.size(), offset + sizeof head);
  }
  if (error == 0 && crc32c(head.length, bytes) != head.crc) error = EIO;
  if (error == EIO) return Status::system("the job log is damaged at byte " + std::to_string(offset));
  if (error != 0) return Status::from_errno("cannot read the job log", error);
  *end = offset + padded(head.length);
  return {};
}

class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (head_ != nullptr) munmap(head_, kHeadBytes);
  }
  // The file must be at least kHeadBytes long.
  int map(int fd, int protection) {
    void* at = mmap(nullptr, kHeadBytes, protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return errno;
    head_ = static_cast<Head*>(at);
    return 0;
  }
  Head* head() const { return head_; }

 private:
  Head* head_ = nullptr;
};

}  // namespace

struct SharedLogWriter::Impl {
  Fd file;
  Fd readable;
  Mapping mapping;
  std::vector<uint64_t> offsets;  // of each record, and of the end

  Head& head() const { return *mapping.head(); }
  uint64_t limit() const { return kHeadBytes + head().capacity; }
  Status lock_and_map(const std::string& path);
  Status adopt(const std::string& path, uint64_t log_id);
  Status begin(const std::string& path, uint64_t log_id, uint64_t capacity);
};

Status SharedLogWriter::Impl::lock_and_map(const std::string& path) {
  file = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return descriptor_error("cannot open the job log " + path, errno);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Status::usage("another process writes the job log " + path);
    return Status::from_errno("cannot lock the job log " + path, errno);
  }
  readable = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!readable) return descriptor_error("cannot open the job log " + path, errno);
  struct stat status{};
  if (fstat(file.get(), &status) != 0) return Status::from_errno("cannot look at the job log " + path, errno);
  if (static_cast<uint64_t>(status.st_size) < kHeadBytes) {
    // Written, not only made longer: a page that the disk has no room for would be a SIGBUS later.
    const std::string zeros(kHeadBytes, '\0');
    if (const int error = write_at(file.get(), zeros.data(), zeros.size(), 0); error != 0) {
      return Status::from_errno("cannot make the job log " + path, error);
    }
  }
  if (const int error = mapping.map(file.get(), PROT_READ | PROT_WRITE); error != 0) {
    return Status::from_errno("cannot map the job log " + path, error);
  }
  return {};
}

Status SharedLogWriter::Impl::begin(const std::string& path, uint64_t log_id, uint64_t capacity) {
  if (ftruncate(file.get(), kHeadBytes) != 0) return Status::from_errno("cannot make the job log " + path, errno);
  head().version = kVersion;
  head().log_id = log_id;
  head().capacity = capacity;
  head().count.store(0, std::memory_order_relaxed);
  head().frozen.store(0, std::memory_order_relaxed);
  head().magic.store(kMagic, std::memory_order_release);
  offsets = {kHeadBytes};
  return {};
}

// Takes over a log that an earlier writer left: whatever it had not published counts as never written.
Status SharedLogWriter::Impl::adopt(const std::string& path, uint64_t log_id) {
  if (head().magic.load(std::memory_order_acquire) != kMagic || head().version != kVersion) {
    return Status::system(path + " is no job log of this version; remove it");
  }
  if (head().log_id != log_id) return Status::usage("the job log " + path + " is another log's");
  if (head().frozen.load(std::memory_order_acquire) != 0) {
    return Status::usage("the job log " + path + " is frozen: its agents' logs have forked");
  }
  offsets = {kHeadBytes};
  std::string bytes;
  const uint64_t count = head().count.load(std::memory_order_acquire);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t end = 0;
    THESEUS_TRY(read_record(file.get(), offsets.back(), limit(), bytes, &end));
    offsets.push_back(end);
  }
  return {};
}

SharedLogWriter::SharedLogWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SharedLogWriter::~SharedLogWriter() = default;

Result<std::unique_ptr<SharedLogWriter>> SharedLogWriter::open(const std::string& path, uint64_t log_id,
                                                               uint64_t capacity_bytes) {
  auto impl = std::make_unique<Impl>();
  THESEUS_TRY(impl->lock_and_map(path));
  const bool fresh = impl->head().magic.load(std::memory_order_acquire) == 0;
  THESEUS_TRY(fresh ? impl->begin(path, log_id, capacity_bytes) : impl->adopt(path, log_id));
  return std::unique_ptr<SharedLogWriter>(new SharedLogWriter(std::move(impl)));
}

uint64_t SharedLogWriter::log_id() const { return impl_->head().log_id; }
uint64_t SharedLogWriter::count() const { return impl_->offsets.size() - 1; }
bool SharedLogWriter::frozen() const { return impl_->head().frozen.load(std::memory_order_acquire) != 0; }
void SharedLogWriter::freeze() { impl_->head().frozen.store(1, std::memory_order_release); }
int SharedLogWriter::fd() const { return impl_->readable.get(); }

Status SharedLogWriter::append(uint64_t index, std::string_view bytes) {
  if (frozen()) return Status::usage("the job log is frozen: its agents' logs have forked");
  if (bytes.size() > kLongestLogRecord) return Status::argument("a record of the job log is too long");
  Impl& log = *impl_;
  if (index > count()) {
    return Status::usage("record " + std::to_string(index) + " of the job log leaves a gap: the next is " +
                         std::to_string(count()));
  }
  if (index < count()) {
    std::string stands;
    uint64_t end = 0;
    THESEUS_TRY(read_record(log.file.get(), log.offsets[index], log.limit(), stands, &end));
    if (stands == bytes) return {};
    freeze();
    return Status::usage("record " + std::to_string(index) +
                         " of the job log differs from the one that ranks have read: the log is frozen");
  }
  const uint64_t offset = log.offsets.back();
  const uint64_t size = padded(bytes.size());
  if (offset + size > log.limit()) return Status::system("the job log is full");
  const RecordHead head{static_cast<uint32_t>(bytes.size()), crc32c(static_cast<uint32_t>(bytes.size()), bytes)};
  std::string record(size, '\0');
  std::memcpy(record.data(), &head, sizeof head);
  if (!bytes.empty()) std::memcpy(record.data() + sizeof head, bytes.data(), bytes.size());
  if (const int error = write_at(log.file.get(), record.data(), record.size(), offset); error != 0) {
    return Status::from_errno("cannot write to the job log", error);
  }
  log.offsets.push_back(offset + size);
  log.head().count.store(count(), std::memory_order_release);
  return {};
}

struct SharedLogReader::Impl {
  Fd file;
  Mapping mapping;
  uint64_t position = 0;
  uint64_t offset = kHeadBytes;

  const Head& head() const { return *mapping.head(); }
};

SharedLogReader::SharedLogReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SharedLogReader::~SharedLogReader() = default;

Result<std::unique_ptr<SharedLogReader>> SharedLogReader::open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return descriptor_error("cannot open the job log " + path, errno);
  return from_fd(std::move(fd));
}

Result<std::unique_ptr<SharedLogReader>> SharedLogReader::from_fd(Fd fd) {
  struct stat status{};
  if (fstat(fd.get(), &status) != 0) return Status::from_errno("cannot look at the job log", errno);
  if (!S_ISREG(status.st_mode) || static_cast<uint64_t>(status.st_size) < kHeadBytes) {
    return Status::system("what should be the job log is none: it is too short");
  }
  auto impl = std::make_unique<Impl>();
  impl->file = std::move(fd);
  if (const int error = impl->mapping.map(impl->file.get(), PROT_READ); error != 0) {
    return Status::from_errno("cannot map the job log", error);
  }
  if (impl->head().magic.load(std::memory_order_acquire) != kMagic || impl->head().version != kVersion) {
    return Status::system("what should be the job log is none, or of another version");
  }
  return std::unique_ptr<SharedLogReader>(new SharedLogReader(std::move(impl)));
}

uint64_t SharedLogReader::log_id() const { return impl_->head().log_id; }
uint64_t SharedLogReader::count() const { return impl_->head().count.load(std::memory_order_acquire); }
uint64_t SharedLogReader::position() const { return impl_->position; }
bool SharedLogReader::frozen() const { return impl_->head().frozen.load(std::memory_order_acquire) != 0; }

Result<bool> SharedLogReader::next(std::string& bytes) {
  Impl& log = *impl_;
  struct stat status{};
  if (fstat(log.file.get(), &status) != 0) return Status::from_errno("cannot look at the job log", errno);
  if (static_cast<uint64_t>(status.st_size) < log.offset) {
    return Status::system("the job log was cut short: it ends before byte " + std::to_string(log.offset));
  }
  if (count() <= log.position) return false;
  uint64_t end = 0;
  THESEUS_TRY(read_record(log.file.get(), log.offset, kHeadBytes + log.head().capacity, bytes, &end));
  log.offset = end;
  ++log.position;
  return true;
}

}  // namespace theseus
