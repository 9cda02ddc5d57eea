#include "transport/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

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
size_t connection_bytes(const SegmentGeometry& g) { return round_up(g.slots * slot_stride(g), kPage); }
size_t total_bytes(const SegmentGeometry& g) { return data_offset(g) + connections(g) * connection_bytes(g); }

Result<void*> map(int fd, size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    return Status::from_errno("cannot map the " + std::to_string(bytes >> 20) +
                                  " MiB of address space that the local ranks share (see ulimit -v, or set "
                                  "THESEUS_SLOT_BYTES lower)",
                              errno);
  }
  // A forked child must neither write here nor keep the pages alive in ways its parent does not know.
  madvise(base, bytes, MADV_DONTFORK);
  return base;
}

}  // namespace

Segment::Segment(int fd, void* base, size_t bytes, const SegmentGeometry& geometry)
    : fd_(fd), base_(static_cast<uint8_t*>(base)), bytes_(bytes), geometry_(geometry) {}

Segment::~Segment() {
  munmap(base_, bytes_);
  close(fd_);
}

Result<std::unique_ptr<Segment>> Segment::create(const SegmentGeometry& geometry) {
  const size_t bytes = total_bytes(geometry);
  const int fd = memfd_create("theseus", MFD_CLOEXEC);
  if (fd < 0) return Status::from_errno("cannot create the shared segment (see ulimit -n)", errno);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    return Status::from_errno("cannot size the shared segment to " + std::to_string(bytes >> 20) + " MiB (see ulimit -f)",
                              error);
  }
  // The part that every request touches is reserved now, so that a full memory is an error here and not SIGBUS later.
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(controls_offset(geometry))); error != 0) {
    close(fd);
    return Status::from_errno("no memory for the shared segment", error);
  }
  Result<void*> base = map(fd, bytes);
  if (!base.ok()) {
    close(fd);
    return base.status();
  }
  auto* head = new (*base) SegmentHead{};
  head->ranks = geometry.ranks;
  head->slots = geometry.slots;
  head->slot_bytes = geometry.slot_bytes;
  head->magic = kMagic;
  return std::unique_ptr<Segment>(new Segment(fd, *base, bytes, geometry));
}

Result<std::unique_ptr<Segment>> Segment::attach(int fd, const SegmentGeometry& expected) {
  const size_t bytes = total_bytes(expected);
  struct stat info {};
  if (fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) != bytes) {
    close(fd);
    return Status::internal("the shared segment that a local rank passed has another size than agreed");
  }
  Result<void*> base = map(fd, bytes);
  if (!base.ok()) {
    close(fd);
    return base.status();
  }
  auto segment = std::unique_ptr<Segment>(new Segment(fd, *base, bytes, expected));
  const auto* head = static_cast<const SegmentHead*>(*base);
  if (head->magic != kMagic || head->ranks != expected.ranks || head->slots != expected.slots ||
      head->slot_bytes != expected.slot_bytes) {
    return Status::internal("the shared segment that a local rank passed has another layout than agreed");
  }
  return segment;
}

RankPage& Segment::rank_page(int local_rank) const {
  return reinterpret_cast<RankPage*>(base_ + kPage)[local_rank];
}

ConnectionControl& Segment::control(int channel, int src, int dst) const {
  const size_t index = (size_t(channel) * geometry_.ranks + src) * geometry_.ranks + dst;
  return reinterpret_cast<ConnectionControl*>(base_ + controls_offset(geometry_))[index];
}

uint8_t* Segment::slot(int channel, int src, int dst, int index) const {
  const size_t connection = (size_t(channel) * geometry_.ranks + src) * geometry_.ranks + dst;
  return base_ + data_offset(geometry_) + connection * connection_bytes(geometry_) + index * slot_stride(geometry_);
}

std::atomic<uint32_t>& Segment::failed() const { return reinterpret_cast<SegmentHead*>(base_)->failed; }

}  // namespace theseus
