// A builder whose parts are texts that say what they were made for, and which knows every part that is alive.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "resource/tree.h"

namespace theseus::testing {

// The schedule that a part of this text was made for, and all else that it depends on.
inline std::string text_of(Layer layer, const ResourceRequest& request) {
  std::string text = "S" + std::to_string(request.schedule) + " of S" + std::to_string(request.family);
  if (layer >= Layer::Buffer) {
    text += " B" + std::to_string(request.buffer.id) + "@" + std::to_string(request.buffer.generation);
  }
  if (layer >= Layer::Range) {
    text += " [" + std::to_string(request.range.offset) + "," +
            std::to_string(request.range.offset + request.range.length) + ")";
  }
  return text;
}

// Unequal, so that sums tell parts apart.
inline size_t size_of_part(Layer layer, uint64_t schedule) {
  return (layer == Layer::Schedule ? 1000 : layer == Layer::Buffer ? 500 : 100) + schedule % 1000;
}

class FakePart final : public Part {
 public:
  explicit FakePart(std::set<const FakePart*>& alive) : alive_(alive) { alive_.insert(this); }
  ~FakePart() override { alive_.erase(this); }
  size_t bytes() const override { return size; }

  std::string text;
  uint64_t schedule = 0;
  size_t size = 0;
  bool global = false;

 private:
  std::set<const FakePart*>& alive_;
};

// A part of the global layer is as large as its arena.
class FakeBuilder final : public Builder {
 public:
  Result<std::shared_ptr<Part>> build(Layer layer, const ResourceRequest& request, const Parts& above,
                                      Delta& delta) override {
    return make(layer, request, above, nullptr, delta);
  }
  Result<std::shared_ptr<Part>> migrate(Layer layer, const ResourceRequest& request, const Parts& above,
                                        const std::shared_ptr<Part>& old, bool in_use, Delta& delta) override {
    EXPECT_NE(static_cast<FakePart&>(*old).schedule, request.schedule) << "migrated to what it was";
    return make(layer, request, above, in_use ? nullptr : old, delta);
  }
  size_t arena_need(const Parts& parts) const override {
    return static_cast<FakePart&>(*parts[3]).text.empty() ? 0 : need_of(static_cast<FakePart&>(*parts[3]).text);
  }
  size_t arena_size(const Part& global) const override { return static_cast<const FakePart&>(global).size; }
  Result<std::shared_ptr<Part>> resize_arena(const std::shared_ptr<Part>& global, bool in_use, size_t bytes) override {
    if (failing == 1) return failing = 0, Status::system("no memory");
    std::shared_ptr<Part> part = in_use ? make_global() : global;
    static_cast<FakePart&>(*part).size = bytes;
    return part;
  }

  // Ten bytes of arena for each element of the range.
  static size_t need_of(const std::string& text) {
    const size_t open = text.find('['), comma = text.find(',', open);
    return 10 * (std::stoul(text.substr(comma + 1)) - std::stoul(text.substr(open + 1)));
  }
  size_t bytes_alive() const {
    size_t bytes = 0;
    for (const FakePart* part : alive) bytes += part->size + kVertexBytes;
    return bytes;
  }
  bool made_for(uint64_t schedule) const {
    for (const FakePart* part : alive) {
      if (!part->global && part->schedule == schedule) return true;
    }
    return false;
  }

  std::set<const FakePart*> alive;
  int failing = 0;  // n: the n-th thing asked for from here on is refused

 private:
  std::shared_ptr<Part> make_global() {
    auto part = std::make_shared<FakePart>(alive);
    part->text = "global";
    part->global = true;
    return part;
  }

  Result<std::shared_ptr<Part>> make(Layer layer, const ResourceRequest& request, const Parts& above,
                                     const std::shared_ptr<Part>& old, Delta& delta) {
    if (failing > 0 && --failing == 0) return Status::system("no memory");
    for (size_t i = 0; i < kLayers; ++i) {
      EXPECT_EQ(above[i] != nullptr, i < static_cast<size_t>(layer)) << "parts above " << name_of(layer);
    }
    for (size_t i = 1; i < static_cast<size_t>(layer); ++i) {
      EXPECT_EQ(static_cast<FakePart&>(*above[i]).text, text_of(static_cast<Layer>(i), request)) << "stale";
    }
    if (layer == Layer::Global) return make_global();
    ++(old == nullptr ? delta.made : delta.shared);
    // What is not in use is changed in place: whoever still looks at it would notice.
    std::shared_ptr<Part> part = old != nullptr ? old : std::make_shared<FakePart>(alive);
    auto& fake = static_cast<FakePart&>(*part);
    fake.text = text_of(layer, request);
    fake.schedule = request.schedule;
    fake.size = size_of_part(layer, request.schedule);
    return part;
  }
};

}  // namespace theseus::testing
