// The resource tree of one communicator: what schedules need to run, each thing at the highest layer where it stays
// valid (Theseus, "Switching cheaply: the resource tree and delta migration").
//
// A request walks from the root to a leaf. A vertex that is missing is built; one whose tag is the selected schedule is
// reused; one with another tag is migrated: only the difference is built, and only along this path. So a schedule that
// is never selected costs nothing, and one that is replaced gives way path by path, as requests come by.
//
//     L0            global                       key: none          tag: none
//     L1         S0        S1                    key: family        tag: S2, S1     (S2 replaced S0)
//     L2      B0    B1       B0                  key: buffer        tag: S2, S2, S1
//     L3   [0,1) [0,1) [1,2)   [1,2)             key: range         tag: S2, S2, S0, S1
//
// The last leaf under B1 keeps S0 until a request visits it; it is never used as it is.
//
// From selection to completion a Lease pins its path. Migrating a pinned vertex makes a copy that takes its place in
// the tree; the pinned one stays until its last lease is gone. Above the budget the least recently used vertices that
// are not pinned go, leaves first; pinned ones never do, so that the budget may be passed while they are.
//
// Pure bookkeeping, used under the communicator's lock. What peers hold follows from headers, never from a hit here, so
// that ranks may evict differently.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "resource/builder.h"

namespace theseus {

// What a vertex itself takes, beside its part.
inline constexpr size_t kVertexBytes = 256;

// What a walk did with a vertex. Copied: migrated while a lease held it.
enum class Visit : uint8_t { Reused, Built, Migrated, Copied };
inline constexpr size_t kVisits = 4;

struct LayerStatistics {
  size_t vertices = 0;
  size_t bytes = 0;
  std::array<uint64_t, kVisits> visits = {};  // by Visit, so far
  uint64_t evicted = 0;
};

struct TreeStatistics {
  std::array<LayerStatistics, kLayers> layers;
  size_t bytes = 0;          // all of it
  size_t retired = 0;        // vertices that are out of the tree and still pinned
  size_t retired_bytes = 0;  // part of `bytes`
  size_t arena_bytes = 0;    // likewise
  uint64_t arena_resizes = 0;
  uint64_t walks = 0;
  uint64_t recalls = 0;
  Delta built;     // by building, so far
  Delta migrated;  // by migrating, so far
};

class ResourceTree {
  struct Vertex;

 public:
  // Where a walk ended up: good for recall() as long as the tree does not change.
  struct Trail {
    std::array<Vertex*, kLayers> path = {};
    uint64_t changes = 0;
  };

  // A pinned path. Given back, under the same lock, before the tree goes.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : tree_(other.tree_), path_(other.path_) { other.tree_ = nullptr; }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { release(); }
    explicit operator bool() const { return tree_ != nullptr; }
    void release() {
      if (tree_ == nullptr) return;
      // A leaf first: who is retired below a vertex never outlives it by mistake.
      for (size_t i = kLayers; i-- > 0;) tree_->unpin(*path_[i]);
      tree_ = nullptr;
    }

    const std::shared_ptr<Part>& shared(Layer layer) const;
    template <class T>
    T& part(Layer layer) const {
      return static_cast<T&>(*shared(layer));
    }
    // Of the tree as it is now.
    Trail trail() const;

   private:
    friend class ResourceTree;
    Lease(ResourceTree* tree, const std::array<Vertex*, kLayers>& path) : tree_(tree), path_(path) {}
    ResourceTree* tree_ = nullptr;
    std::array<Vertex*, kLayers> path_ = {};
  };

  // `builder` outlives the tree. `budget`: bytes.
  ResourceTree(Builder& builder, size_t budget);
  ~ResourceTree();
  ResourceTree(const ResourceTree&) = delete;
  ResourceTree& operator=(const ResourceTree&) = delete;

  // The path of a request, up to date for its schedule, and pinned. Errors: the builder's; the tree is then whole, and
  // what was stale stays marked as that.
  Result<Lease> walk(const ResourceRequest& request);
  // What the last walk that succeeded did, by layer.
  const std::array<Visit, kLayers>& last_visits() const { return visits_; }
  // The path that an earlier walk ended up at, or an empty lease where the tree has changed since: walk again. A few
  // nanoseconds, for whoever remembers selections.
  Lease recall(const Trail& trail) {
    if (trail.changes != changes_ || trail.path[0] == nullptr) [[unlikely]]
      return {};
    ++clock_;
    for (Vertex* vertex : trail.path) {
      ++vertex->pins;
      vertex->last_use = clock_;
    }
    return Lease(this, trail.path);
  }

  // The same for a request that is complete before the tree is used again, so that nothing has to be pinned: whether
  // the path is still there.
  bool touch(const Trail& trail) {
    if (trail.changes != changes_ || trail.path[0] == nullptr) [[unlikely]]
      return false;
    trail.path[kLayers - 1]->last_use = ++clock_;
    return true;
  }

  // Drops what was made for `schedule`. True: nothing holds it any more, so it may be unloaded; false: leases do.
  bool unload(uint64_t schedule);
  bool holds(uint64_t schedule) const { return tagged_.contains(schedule); }
  // All that something was made for, in increasing order.
  std::vector<uint64_t> schedules() const;

  void set_budget(size_t bytes);
  size_t budget() const { return budget_; }
  size_t bytes() const { return bytes_; }
  TreeStatistics statistics() const;

  // The vertex of a request's layer, whatever its tag: the tag, or nothing where there is none. For tests and displays.
  bool find(Layer layer, const ResourceRequest& request, uint64_t& tag) const;
  // Vertices that could be evicted now: not pinned, and neither is anything below them.
  size_t evictable() const;

 private:
  using Key = std::array<uint64_t, 3>;
  using Path = std::array<Vertex*, kLayers>;

  struct Vertex {
    uint64_t last_use = 0;
    uint32_t pins = 0;  // leases
    bool retired = false;
    Layer layer = Layer::Global;
    Key key = {};
    uint64_t tag = 0;
    uint64_t generation = 0;  // of the buffer
    std::shared_ptr<Part> part;
    size_t bytes = 0;  // as counted
    size_t need = 0;   // Range: of the arena
    Vertex* parent = nullptr;
    std::map<Key, std::unique_ptr<Vertex>> children;
  };

  Status descend(const ResourceRequest& request, Path& path, Parts& parts, std::array<Visit, kLayers>& visits);
  Status visit(Layer layer, const ResourceRequest& request, Vertex* parent, const Parts& above, Vertex*& found,
               Visit& visit);
  Result<Vertex*> add(Layer layer, const ResourceRequest& request, Vertex* parent, const Parts& above);
  Result<Vertex*> migrate(Vertex& vertex, const ResourceRequest& request, const Parts& above, Visit& visit);
  Status fit_arena(Path& path, const Parts& parts, Visit& visit);
  Status resize_arena(size_t bytes);
  Vertex* replace(Vertex& vertex, std::shared_ptr<Part> part, uint64_t tag);

  void pin(Vertex& vertex);
  void unpin(Vertex& vertex) {
    assert(vertex.pins > 0);
    if (--vertex.pins == 0 && vertex.retired) [[unlikely]]
      bury(vertex);
  }
  void bury(Vertex& vertex);
  void detach(Vertex& vertex);
  void retire(std::unique_ptr<Vertex> vertex);
  void count(const Vertex& vertex, bool added);
  void count_need(size_t need, bool added);
  void set_part(Vertex& vertex, std::shared_ptr<Part> part, uint64_t tag);
  void trim();
  static uint64_t age(Vertex& vertex);
  size_t arena_slack() const;
  template <class Visitor>
  void each(Vertex* from, const Visitor& visitor) const;
  static Key key_of(Layer layer, const ResourceRequest& request);

  Builder& builder_;
  size_t budget_;
  size_t bytes_ = 0;
  std::unique_ptr<Vertex> root_;  // null before the first walk
  std::unordered_map<Vertex*, std::unique_ptr<Vertex>> retired_;
  std::unordered_map<uint64_t, uint32_t> tagged_;  // by schedule: vertices, retired ones too
  std::map<size_t, uint32_t> needs_;               // of the arena: how many leaves have each
  uint64_t clock_ = 0;                             // walks and recalls so far
  uint64_t changes_ = 0;
  std::array<Visit, kLayers> visits_ = {};
  TreeStatistics totals_;
};

}  // namespace theseus
