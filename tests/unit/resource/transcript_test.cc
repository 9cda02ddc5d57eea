// The resource tree by transcript: tests/unit/resource/*.txt.
//
//     request NAME SCHEDULE FAMILY BUFFER[@GENERATION] RANGE [keep]   what a walk did, layer by layer
//     recall NAME         the path that NAME ended up at, if the tree is as it was then
//     release NAME        gives back what `keep` kept
//     unload SCHEDULE     whether anything still holds it
//     budget BYTES
//     fail N              the N-th part asked for from here on cannot be made
//     tree                every vertex that requests so far could meet
//     numbers
#include <gtest/gtest.h>

#include <map>

#include "fake_builder.h"
#include "unit/context/transcript.h"

namespace theseus {
namespace {

using testing::FakeBuilder;
using testing::FakePart;

uint64_t number_of(const std::string& name) { return std::stoull(name.substr(1)); }

const char* word_of(Visit visit) {
  constexpr const char* kWords[] = {"reused", "built", "migrated", "copied"};
  return kWords[static_cast<size_t>(visit)];
}

// Answers the commands of one transcript.
class Script {
 public:
  std::string answer(const Words& words) {
    const std::string& command = words[0];
    if (command == "request") return request(words);
    if (command == "recall") return recall(words);
    if (command == "release") return kept_.erase(words.at(1)) == 1 ? "ok\n" : "not kept\n";
    if (command == "unload") return tree_.unload(number_of(words.at(1))) ? "unloaded\n" : "held\n";
    if (command == "budget") return tree_.set_budget(std::stoull(words.at(1))), "ok\n";
    if (command == "fail") return builder_.failing = std::stoi(words.at(1)), "ok\n";
    if (command == "tree") return show();
    if (command == "numbers") return numbers();
    return "unknown command\n";
  }

 private:
  static ResourceRequest parse(const Words& words) {
    ResourceRequest request;
    request.schedule = number_of(words.at(2));
    request.family = number_of(words.at(3));
    const std::string& buffer = words.at(4);
    request.buffer.id = number_of(buffer);
    if (const size_t at = buffer.find('@'); at != std::string::npos) {
      request.buffer.generation = std::stoull(buffer.substr(at + 1));
    }
    const std::string& range = words.at(5);
    request.range.offset = std::stoull(range.substr(1));
    request.range.length = std::stoull(range.substr(range.find(',') + 1)) - request.range.offset;
    return request;
  }

  std::string request(const Words& words) {
    const ResourceRequest request = parse(words);
    known_.emplace(testing::text_of(Layer::Range, request).substr(3), request);
    Result<ResourceTree::Lease> lease = tree_.walk(request);
    if (!lease.ok()) return "error: " + lease.status().message() + "\n";
    std::string lines;
    for (size_t i = 0; i < kLayers; ++i) {
      const auto layer = static_cast<Layer>(i);
      lines += "L" + std::to_string(i) + " " + word_of(tree_.last_visits()[i]) + " " +
               lease->part<FakePart>(layer).text + "\n";
    }
    trails_[words.at(1)] = lease->trail();
    if (words.size() > 6) kept_[words.at(1)] = std::move(*lease);
    return lines;
  }

  std::string recall(const Words& words) {
    const ResourceTree::Lease lease = tree_.recall(trails_.at(words.at(1)));
    return lease ? lease.part<FakePart>(Layer::Range).text + "\n" : "walk again\n";
  }

  std::string show() const {
    std::map<std::string, std::string> lines;  // by path, so that each comes once and in order
    for (const auto& [text, request] : known_) {
      std::string path;
      for (const Layer layer : {Layer::Schedule, Layer::Buffer, Layer::Range}) {
        const std::string key = layer == Layer::Schedule ? "S" + std::to_string(request.family)
                                : layer == Layer::Buffer
                                    ? "B" + std::to_string(request.buffer.id)
                                    : "[" + std::to_string(request.range.offset) + "," +
                                          std::to_string(request.range.offset + request.range.length) + ")";
        path += "/" + key;
        uint64_t tag = 0;
        if (!tree_.find(layer, request, tag)) continue;
        lines[path] = std::string(2 * static_cast<size_t>(layer) - 2, ' ') + key + " tag S" + std::to_string(tag);
      }
    }
    std::string all;
    for (const auto& [path, line] : lines) all += line + "\n";
    return all.empty() ? "nothing\n" : all;
  }

  std::string numbers() const {
    const TreeStatistics now = tree_.statistics();
    std::string lines;
    for (size_t i = 0; i < kLayers; ++i) {
      const LayerStatistics& layer = now.layers[i];
      lines += std::string(name_of(static_cast<Layer>(i))) + ": " + std::to_string(layer.vertices) + " vertices";
      for (size_t v = 0; v < kVisits; ++v) {
        lines += ", " + std::to_string(layer.visits[v]) + " " + word_of(static_cast<Visit>(v));
      }
      lines += ", " + std::to_string(layer.evicted) + " evicted\n";
    }
    lines += "bytes " + std::to_string(now.bytes) + ", arena " + std::to_string(now.arena_bytes) + " resized " +
             std::to_string(now.arena_resizes) + " times, retired " + std::to_string(now.retired) + " of " +
             std::to_string(now.retired_bytes) + " bytes\n";
    return lines;
  }

  FakeBuilder builder_;
  ResourceTree tree_{builder_, size_t{1} << 30};
  std::map<std::string, ResourceTree::Lease> kept_;
  std::map<std::string, ResourceTree::Trail> trails_;
  std::map<std::string, ResourceRequest> known_;  // by path
};

class Transcript : public ::testing::TestWithParam<const char*> {};

// The tree does, command by command, what the transcript says.
TEST_P(Transcript, IsAsExpected) {
  Script script;
  run_transcript("../resource/" + std::string(GetParam()) + ".txt",
                 [&](const Words& words) { return script.answer(words); });
}

INSTANTIATE_TEST_SUITE_P(Tree, Transcript,
                         ::testing::Values("figures_9_10", "pins", "eviction", "generations", "failures", "unload"));

}  // namespace
}  // namespace theseus
