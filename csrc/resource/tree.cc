#include "resource/tree.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace theseus {

const char* name_of(Layer layer) {
  switch (layer) {
    case Layer::Global: return "global";
    case Layer::Schedule: return "schedule";
    case Layer::Buffer: return "buffer";
    case Layer::Range: return "range";
  }
  return "?";
}

ResourceTree::Lease& ResourceTree::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    tree_ = std::exchange(other.tree_, nullptr);
    path_ = other.path_;
  }
  return *this;
}

const std::shared_ptr<Part>& ResourceTree::Lease::shared(Layer layer) const {
  return path_[static_cast<size_t>(layer)]->part;
}

ResourceTree::Trail ResourceTree::Lease::trail() const { return {path_, tree_->changes_}; }

ResourceTree::ResourceTree(Builder& builder, size_t budget) : builder_(builder), budget_(budget) {}

ResourceTree::~ResourceTree() { assert(retired_.empty() && (root_ == nullptr || root_->pins == 0)); }

ResourceTree::Key ResourceTree::key_of(Layer layer, const ResourceRequest& request) {
  switch (layer) {
    case Layer::Schedule: return {request.family, 0, 0};
    case Layer::Buffer: return {request.buffer.id, 0, 0};
    case Layer::Range: return {request.range.offset, request.range.length, request.range.form};
    default: return {};
  }
}

Result<ResourceTree::Lease> ResourceTree::walk(const ResourceRequest& request) {
  Path path = {};
  Parts parts;
  std::array<Visit, kLayers> visits = {};
  const Status status = descend(request, path, parts, visits);
  builder_.walked();
  if (!status.ok()) return status;
  ++totals_.walks;
  ++clock_;
  for (size_t i = 0; i < kLayers; ++i) {
    path[i]->last_use = clock_;
    ++totals_.layers[i].visits[static_cast<size_t>(visits[i])];
  }
  visits_ = visits;
  for (size_t i = 1; i < kLayers; ++i) pin(*path[i]);
  if (bytes_ > budget_) trim();
  path[0] = root_.get();  // the arena may have shrunk
  pin(*root_);
  return Lease(this, path);
}

Status ResourceTree::descend(const ResourceRequest& request, Path& path, Parts& parts,
                             std::array<Visit, kLayers>& visits) {
  for (size_t i = 0; i < kLayers; ++i) {
    THESEUS_TRY(visit(static_cast<Layer>(i), request, i == 0 ? nullptr : path[i - 1], parts, path[i], visits[i]));
    parts[i] = path[i]->part;
  }
  return fit_arena(path, parts, visits[0]);
}

Status ResourceTree::visit(Layer layer, const ResourceRequest& request, Vertex* parent, const Parts& above,
                           Vertex*& found, Visit& visit) {
  found = nullptr;
  if (layer == Layer::Global) {
    found = root_.get();
  } else if (const auto at = parent->children.find(key_of(layer, request)); at != parent->children.end()) {
    found = at->second.get();
    // Handles to memory that is gone, and offsets into it, are worth nothing to anybody.
    if (layer == Layer::Buffer && found->generation != request.buffer.generation) {
      detach(*found);
      found = nullptr;
    }
  }
  if (found == nullptr) {
    visit = Visit::Built;
    Result<Vertex*> added = add(layer, request, parent, above);
    if (!added.ok()) return added.status();
    found = *added;
  } else if (layer != Layer::Global && found->tag != request.schedule) {
    Result<Vertex*> migrated = migrate(*found, request, above, visit);
    if (!migrated.ok()) return migrated.status();
    found = *migrated;
  } else {
    visit = Visit::Reused;
  }
  return {};
}

Result<ResourceTree::Vertex*> ResourceTree::add(Layer layer, const ResourceRequest& request, Vertex* parent,
                                                const Parts& above) {
  Delta delta;
  Result<std::shared_ptr<Part>> part = builder_.build(layer, request, above, delta);
  if (!part.ok()) return part.status();
  totals_.built.add(delta);
  auto vertex = std::make_unique<Vertex>();
  vertex->layer = layer;
  vertex->key = key_of(layer, request);
  vertex->generation = request.buffer.generation;
  vertex->parent = parent;
  vertex->last_use = parent == nullptr ? 0 : parent->last_use;
  Vertex* added = vertex.get();
  if (parent == nullptr) {
    root_ = std::move(vertex);
  } else {
    parent->children.emplace(added->key, std::move(vertex));
  }
  set_part(*added, std::move(*part), layer == Layer::Global ? 0 : request.schedule);
  return added;
}

Result<ResourceTree::Vertex*> ResourceTree::migrate(Vertex& vertex, const ResourceRequest& request, const Parts& above,
                                                    Visit& visit) {
  const bool in_use = vertex.pins > 0;
  Delta delta;
  Result<std::shared_ptr<Part>> part = builder_.migrate(vertex.layer, request, above, vertex.part, in_use, delta);
  if (!part.ok()) return part.status();
  totals_.migrated.add(delta);
  visit = in_use ? Visit::Copied : Visit::Migrated;
  return replace(vertex, std::move(*part), request.schedule);
}

// The arena is sized for the largest need among the leaves that there are. What else the global part holds grows as
// requests use it, so it is counted again.
Status ResourceTree::fit_arena(Path& path, const Parts& parts, Visit& visit) {
  const size_t need = builder_.arena_need(parts);
  Vertex& leaf = *path[kLayers - 1];
  if (leaf.need != need) {
    count_need(leaf.need, false);
    leaf.need = need;
    count_need(need, true);
  }
  if (root_->bytes != kVertexBytes + root_->part->bytes()) {
    count(*root_, false);
    root_->bytes = kVertexBytes + root_->part->bytes();
    count(*root_, true);
  }
  if (builder_.arena_size(*root_->part) >= need) return {};
  const bool in_use = root_->pins > 0;
  THESEUS_TRY(resize_arena(need));
  if (visit == Visit::Reused) {
    visit = in_use ? Visit::Copied : Visit::Migrated;
    ++totals_.arena_resizes;
  }
  path[0] = root_.get();
  return {};
}

Status ResourceTree::resize_arena(size_t bytes) {
  Result<std::shared_ptr<Part>> part = builder_.resize_arena(root_->part, root_->pins > 0, bytes);
  if (!part.ok()) return part.status();
  replace(*root_, std::move(*part), 0);
  return {};
}

// Gives the vertex another part; where leases hold it, a new vertex takes its place and its children.
ResourceTree::Vertex* ResourceTree::replace(Vertex& vertex, std::shared_ptr<Part> part, uint64_t tag) {
  ++changes_;
  if (vertex.pins == 0) {
    set_part(vertex, std::move(part), tag);
    return &vertex;
  }
  auto fresh = std::make_unique<Vertex>();
  fresh->layer = vertex.layer;
  fresh->key = vertex.key;
  fresh->generation = vertex.generation;
  fresh->last_use = vertex.last_use;
  fresh->parent = vertex.parent;
  fresh->children = std::move(vertex.children);
  vertex.children.clear();
  for (auto& [key, child] : fresh->children) child->parent = fresh.get();
  Vertex* placed = fresh.get();
  std::unique_ptr<Vertex>& place = vertex.parent == nullptr ? root_ : vertex.parent->children.at(vertex.key);
  std::swap(place, fresh);
  retire(std::move(fresh));
  set_part(*placed, std::move(part), tag);
  return placed;
}

void ResourceTree::set_part(Vertex& vertex, std::shared_ptr<Part> part, uint64_t tag) {
  if (vertex.part != nullptr) count(vertex, false);
  vertex.part = std::move(part);
  vertex.tag = tag;
  vertex.bytes = kVertexBytes + vertex.part->bytes();
  count(vertex, true);
}

void ResourceTree::count(const Vertex& vertex, bool added) {
  LayerStatistics& layer = totals_.layers[static_cast<size_t>(vertex.layer)];
  if (added) {
    bytes_ += vertex.bytes;
    layer.bytes += vertex.bytes;
    ++layer.vertices;
  } else {
    bytes_ -= vertex.bytes;
    layer.bytes -= vertex.bytes;
    --layer.vertices;
  }
  if (vertex.layer == Layer::Global) return;
  if (vertex.layer == Layer::Range && !vertex.retired) count_need(vertex.need, added);
  if (added) ++tagged_[vertex.tag];
  if (!added && --tagged_.at(vertex.tag) == 0) tagged_.erase(vertex.tag);
}

void ResourceTree::count_need(size_t need, bool added) {
  if (added) {
    ++needs_[need];
  } else if (--needs_.at(need) == 0) {
    needs_.erase(need);
  }
}

void ResourceTree::pin(Vertex& vertex) { ++vertex.pins; }

// The last lease of a vertex that is out of the tree has let go.
void ResourceTree::bury(Vertex& vertex) {
  totals_.retired_bytes -= vertex.bytes;
  count(vertex, false);
  retired_.erase(&vertex);
}

void ResourceTree::retire(std::unique_ptr<Vertex> vertex) {
  if (vertex->layer == Layer::Range) count_need(vertex->need, false);  // its lease holds the arena
  vertex->parent = nullptr;
  vertex->retired = true;
  totals_.retired_bytes += vertex->bytes;
  retired_.emplace(vertex.get(), std::move(vertex));
}

// Takes the vertex and all below it out of the tree; what leases hold stays until they let go.
void ResourceTree::detach(Vertex& vertex) {
  while (!vertex.children.empty()) detach(*vertex.children.begin()->second);
  vertex.parent->last_use = std::max(vertex.parent->last_use, vertex.last_use);
  auto node = vertex.parent->children.extract(vertex.key);
  ++changes_;
  if (vertex.pins > 0) return retire(std::move(node.mapped()));
  count(vertex, false);
}

template <class Visitor>
void ResourceTree::each(Vertex* from, const Visitor& visitor) const {
  if (from == nullptr) return;
  visitor(*from);
  for (auto& [key, child] : from->children) each(child.get(), visitor);
}

size_t ResourceTree::arena_slack() const {
  if (root_ == nullptr || root_->pins > 0) return 0;
  const size_t size = builder_.arena_size(*root_->part);
  const size_t largest = needs_.empty() ? 0 : needs_.rbegin()->first;
  return size > largest ? size - largest : 0;
}

// A vertex is used whenever anything below it is. Returns when that was.
uint64_t ResourceTree::age(Vertex& vertex) {
  for (auto& [key, child] : vertex.children) vertex.last_use = std::max(vertex.last_use, age(*child));
  return vertex.last_use;
}

// Least recently used first. A vertex was used no earlier than anything below it, so that leaves come first.
void ResourceTree::trim() {
  if (root_ != nullptr) age(*root_);
  std::vector<Vertex*> candidates;
  each(root_.get(), [&](Vertex& vertex) {
    if (vertex.layer != Layer::Global && vertex.pins == 0) candidates.push_back(&vertex);
  });
  std::sort(candidates.begin(), candidates.end(), [](const Vertex* a, const Vertex* b) {
    return std::pair(a->last_use, b->layer) < std::pair(b->last_use, a->layer);
  });
  auto next = candidates.begin();
  const auto evict_down_to = [&](auto&& enough) {
    while (!enough()) {
      while (next != candidates.end() && !(*next)->children.empty()) ++next;
      if (next == candidates.end()) return;
      ++totals_.layers[static_cast<size_t>((*next)->layer)].evicted;
      detach(**next++);
    }
  };
  evict_down_to([&] { return bytes_ <= budget_ + arena_slack(); });
  if (bytes_ <= budget_ || arena_slack() == 0) return;
  if (resize_arena(needs_.empty() ? 0 : needs_.rbegin()->first).ok()) {
    ++totals_.arena_resizes;
  } else {  // no reason to fail a request
    evict_down_to([&] { return bytes_ <= budget_; });
  }
}

bool ResourceTree::unload(uint64_t schedule) {
  std::vector<Vertex*> doomed;
  // Those nearest the root only: they take all below with them.
  const auto collect = [&](const auto& self, Vertex& vertex) -> void {
    if (vertex.layer != Layer::Global && vertex.tag == schedule) return doomed.push_back(&vertex);
    for (auto& [key, child] : vertex.children) self(self, *child);
  };
  if (root_ != nullptr && holds(schedule)) collect(collect, *root_);
  for (Vertex* vertex : doomed) detach(*vertex);
  return !holds(schedule);
}

std::vector<uint64_t> ResourceTree::schedules() const {
  std::vector<uint64_t> all;
  for (const auto& [schedule, vertices] : tagged_) all.push_back(schedule);
  std::sort(all.begin(), all.end());
  return all;
}

void ResourceTree::set_budget(size_t bytes) {
  budget_ = bytes;
  if (bytes_ > budget_) trim();
}

TreeStatistics ResourceTree::statistics() const {
  TreeStatistics now = totals_;
  now.recalls = clock_ - now.walks;
  now.bytes = bytes_;
  now.retired = retired_.size();
  now.arena_bytes = root_ == nullptr ? 0 : builder_.arena_size(*root_->part);
  return now;
}

bool ResourceTree::find(Layer layer, const ResourceRequest& request, uint64_t& tag) const {
  const Vertex* vertex = root_.get();
  for (size_t i = 1; vertex != nullptr && i <= static_cast<size_t>(layer); ++i) {
    const auto found = vertex->children.find(key_of(static_cast<Layer>(i), request));
    vertex = found == vertex->children.end() ? nullptr : found->second.get();
  }
  if (vertex == nullptr) return false;
  tag = vertex->tag;
  return true;
}

size_t ResourceTree::evictable() const {
  size_t free = 0;
  const auto look = [&](const auto& self, const Vertex& vertex) -> bool {
    bool below = false;
    for (const auto& [key, child] : vertex.children) below |= self(self, *child);
    const bool held = below || vertex.pins > 0;
    if (!held && vertex.layer != Layer::Global) ++free;
    return held;
  };
  if (root_ != nullptr) look(look, *root_);
  return free;
}

}  // namespace theseus
