#include "transport/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <new>
#include <tuple>

namespace theseus {
namespace {

constexpr uint64_t kMagic = 0x31474553'53454854;  // "THESSEG1"
constexpr size_t kPage = 4096;
// Slots of one connection start at different cache sets.
constexpr size_t kSlotPadding = 576;

struct SegmentHead {
  uint64_t magic;
  uint32_t ranks;
  uint32_t slots;
  uint32_t slot_bytes;
  alignas(64) std::atomic<uint32_t> failed;
};
static_assert(sizeof(SegmentHead) <= kPage);

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
size_t connections(const SegmentGeometry& g) { return size_t{kShmChannels} * g.ranks * g.ranks; }
size_t slot_stride(const SegmentGeometry& g) { return g.slot_bytes + kSlotPadding; }
size_t controls_offset(const SegmentGeometry& g) { return kPage + round_up(g.ranks * sizeof(RankPage), kPage); }
size_t data_offset(const SegmentGeometry& g) {
  return controls_offset(g) + round_up(connections(g) * sizeof(ConnectionControl), kPage);
}
size_t connection_bytes(const SegmentGeometry& g) {
  return round_up(g.slots * slot_stride(g) + kCells * kCellBytes, kPage);
}
size_t total_bytes(const SegmentGeometry& g) { return data_offset(g) + connections(g) * connection_bytes(g); }

// One of the further channels: controls, then data.
size_t pairs(const SegmentGeometry& g) { return size_t{g.ranks} * g.ranks; }
size_t more_data_offset(const SegmentGeometry& g) { return round_up(pairs(g) * sizeof(ConnectionControl), kPage); }
size_t more_bytes(const SegmentGeometry& g) { return more_data_offset(g) + pairs(g) * connection_bytes(g); }

}  // namespace

// The mappings of this process, by file and place in it. A forked child inherits the table, but not the memory
// (MADV_DONTFORK), so that the process is part of the key.
class Segment::Mapping {
 public:
  static Result<std::shared_ptr<Mapping>> of(int fd, size_t offset, size_t bytes) {
    struct stat info{};
    if (fstat(fd, &info) != 0) return Status::from_errno("cannot look at the shared segment", errno);
    const Key key{getpid(), info.st_dev, info.st_ino, offset};
    Table& table = Mapping::table();
    const std::lock_guard lock(table.mutex);
    std::weak_ptr<Mapping>& entry = table.mappings[key];
    if (std::shared_ptr<Mapping> known = entry.lock(); known != nullptr) return known;
    void* base =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
    if (base == MAP_FAILED) {
      return Status::from_errno("cannot map the " + std::to_string(bytes >> 20) +
                                    " MiB of address space that the local ranks share (see ulimit -v, or set "
                                    "THESEUS_SLOT_BYTES lower)",
                                errno);
    }
    // A forked child must neither write here nor keep the pages alive in ways its parent does not know.
    madvise(base, bytes, MADV_DONTFORK);
    std::shared_ptr<Mapping> mapping(new Mapping(key, base, bytes));
    entry = mapping;
    return mapping;
  }

  ~Mapping() {
    munmap(base_, bytes_);
    Table& table = Mapping::table();
    const std::lock_guard lock(table.mutex);
    const auto entry = table.mappings.find(key_);
    if (entry != table.mappings.end() && entry->second.expired()) table.mappings.erase(entry);
  }

  void* base() const { return base_; }

 private:
  using Key = std::tuple<pid_t, dev_t, ino_t, size_t>;
  struct Table {
    std::mutex mutex;
    std::map<Key, std::weak_ptr<Mapping>> mappings;
  };
  // Never destroyed: communicators may outlive static destructors.
  static Table& table() {
    static Table& instance = *new Table;
    return instance;
  }

  Mapping(const Key& key, void* base, size_t bytes) : key_(key), base_(base), bytes_(bytes) {}

  Key key_;
  void* base_;
  size_t bytes_;
};

Segment::Segment(int fd, std::shared_ptr<Mapping> mapping, const SegmentGeometry& geometry)
    : fd_(fd),
      mapping_(std::move(mapping)),
      base_(static_cast<uint8_t*>(mapping_->base())),
      total_(total_bytes(geometry)),
      geometry_(geometry) {}

Segment::~Segment() { close(fd_); }

Result<std::unique_ptr<Segment>> Segment::create(const SegmentGeometry& geometry) {
  const size_t bytes = total_bytes(geometry);
  const int fd = memfd_create("theseus", MFD_CLOEXEC);
  if (fd < 0) return Status::from_errno("cannot create the shared segment (see ulimit -n)", errno);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    return Status::from_errno(
        "cannot size the shared segment to " + std::to_string(bytes >> 20) + " MiB (see ulimit -f)", error);
  }
  // The part that every request touches is reserved now, so that a full memory is an error here and not SIGBUS later.
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(controls_offset(geometry))); error != 0) {
    close(fd);
    return Status::from_errno("no memory for the shared segment", error);
  }
  Result<std::shared_ptr<Mapping>> mapping = Mapping::of(fd, 0, bytes);
  if (!mapping.ok()) {
    close(fd);
    return mapping.status();
  }
  auto* head = new ((*mapping)->base()) SegmentHead{};
  head->ranks = geometry.ranks;
  head->slots = geometry.slots;
  head->slot_bytes = geometry.slot_bytes;
  head->magic = kMagic;
  return std::unique_ptr<Segment>(new Segment(fd, std::move(*mapping), geometry));
}

Result<std::unique_ptr<Segment>> Segment::attach(int fd, const SegmentGeometry& expected) {
  const size_t bytes = total_bytes(expected);
  struct stat info{};
  if (fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) != bytes) {
    close(fd);
    return Status::internal("the shared segment that a local rank passed has another size than agreed");
  }
  Result<std::shared_ptr<Mapping>> mapping = Mapping::of(fd, 0, bytes);
  if (!mapping.ok()) {
    close(fd);
    return mapping.status();
  }
  const auto* head = static_cast<const SegmentHead*>((*mapping)->base());
  auto segment = std::unique_ptr<Segment>(new Segment(fd, std::move(*mapping), expected));
  if (head->magic != kMagic || head->ranks != expected.ranks || head->slots != expected.slots ||
      head->slot_bytes != expected.slot_bytes) {
    return Status::internal("the shared segment that a local rank passed has another layout than agreed");
  }
  return segment;
}

RankPage& Segment::rank_page(int local_rank) const { return reinterpret_cast<RankPage*>(base_ + kPage)[local_rank]; }

Status Segment::open_channel(int channel) {
  if (channel < 0 || channel >= kMostShmChannels) {
    return Status::usage("channel " + std::to_string(channel) + " between two ranks of a host: there can be " +
                         std::to_string(kMostShmChannels));
  }
  if (channel < kShmChannels) return {};
  const auto index = static_cast<size_t>(channel - kShmChannels);
  if (more_.size() <= index) more_.resize(index + 1);
  if (more_[index] != nullptr) return {};
  // Allocating the page behind it makes the file long enough, and never shorter, whoever comes first.
  const size_t bytes = more_bytes(geometry_);
  const size_t offset = total_ + index * (bytes + kPage);
  if (const int error = posix_fallocate(fd_, static_cast<off_t>(offset + bytes), kPage); error != 0) {
    return Status::from_errno("no room for another channel in the shared segment (see ulimit -f)", error);
  }
  Result<std::shared_ptr<Mapping>> mapping = Mapping::of(fd_, offset, bytes);
  if (!mapping.ok()) return mapping.status();
  more_[index] = std::move(*mapping);
  return {};
}

ConnectionControl& Segment::control(int channel, int src, int dst) const {
  const size_t pair = size_t(src) * geometry_.ranks + dst;
  if (channel >= kShmChannels) {
    return static_cast<ConnectionControl*>(more_[size_t(channel - kShmChannels)]->base())[pair];
  }
  const size_t index = channel * pairs(geometry_) + pair;
  return reinterpret_cast<ConnectionControl*>(base_ + controls_offset(geometry_))[index];
}

uint8_t* Segment::slot(int channel, int src, int dst, int index) const {
  const size_t pair = size_t(src) * geometry_.ranks + dst;
  const size_t within = index * slot_stride(geometry_);
  if (channel >= kShmChannels) {
    auto* base = static_cast<uint8_t*>(more_[size_t(channel - kShmChannels)]->base());
    return base + more_data_offset(geometry_) + pair * connection_bytes(geometry_) + within;
  }
  const size_t connection = channel * pairs(geometry_) + pair;
  return base_ + data_offset(geometry_) + connection * connection_bytes(geometry_) + within;
}

std::atomic<uint32_t>& Segment::failed() const { return reinterpret_cast<SegmentHead*>(base_)->failed; }

}  // namespace theseus
