#include "compiler/fuse.h"

#include <algorithm>
#include <unordered_map>

namespace theseus {
namespace {

class Fusing {
 public:
  Fusing(const TaskGraph& graph, const Pipeline& pipeline, const RankEnds& all, std::span<const RankEnd> ends,
         LoopOrder loop)
      : graph_(graph), pipeline_(pipeline), all_(all), ends_(ends), loop_(loop) {
    fused_.send_of.assign(ends.size(), -1);
    fused_.receive_of.assign(ends.size(), -1);
    fused_.keeps.assign(ends.size(), 1);
  }

  Fused run() {
    find_only_readers();
    for (int32_t e = 0; e < static_cast<int32_t>(ends_.size()); ++e) {
      if (end(e).sends != 0) decide(e);
    }
    return std::move(fused_);
  }

 private:
  // A version of a chunk, by the end that received it.
  struct Version {
    int32_t writer = -1;
    int32_t reader = -1;
    int32_t readers = 0;
  };
  struct Sent {
    int32_t sent_at = -1;      // the end that sends the last message
    int32_t last = -1;         // the end of the last message,
    int32_t before_last = -1;  // and that of the one before it
  };

  const RankEnd& end(int32_t e) const { return ends_[static_cast<size_t>(e)]; }
  int32_t place(int32_t e) const { return all_.place_of(end(e).task); }

  // The sends that are the only use of what one message brought.
  void find_only_readers() {
    candidates_.assign(ends_.size(), -1);
    std::unordered_map<int32_t, Version> versions;  // by chunk; only looked up
    for (int32_t e = 0; e < static_cast<int32_t>(ends_.size()); ++e) {
      const int32_t chunk = graph_.transfer(end(e).transfer).chunk;
      Version& version = versions[chunk];
      const bool reads = end(e).sends != 0 || graph_.ends[static_cast<size_t>(end(e).transfer)].local != Buffer::None;
      if (reads) {
        ++version.readers;
        version.reader = end(e).sends != 0 ? e : -1;
      }
      if (end(e).sends != 0) continue;
      close(version, false);
      version = {takes_one(e) ? e : -1, -1, 0};
      finals_[chunk] = e;
    }
    for (const auto& [chunk, writer] : finals_) close(versions[chunk], true);
  }

  bool takes_one(int32_t e) const {
    const int32_t next = end(e).transfer + 1;
    return next == static_cast<int32_t>(graph_.transfers.size()) || !graph_.joins_previous(next);
  }

  void close(const Version& version, bool is_final) {
    if (version.writer < 0 || version.readers != 1 || version.reader < 0) return;
    const auto index = static_cast<size_t>(end(version.writer).transfer);
    const bool leaves_host = graph_.between_hosts[static_cast<size_t>(end(version.writer).task)] != 0 ||
                             graph_.between_hosts[static_cast<size_t>(end(version.reader).task)] != 0;
    if (!leaves_host) return;
    candidates_[static_cast<size_t>(version.reader)] = version.writer;
    const bool reduces = graph_.ends[index].local != Buffer::None;
    const bool wanted = is_final && graph_.ends[index].dst == Buffer::Output;
    fused_.keeps[static_cast<size_t>(version.writer)] = !reduces || wanted ? 1 : 0;
  }

  // In the order of the messages of each connection, as compile.h asks. A rank's ends are in the order in which it runs
  // them; its peers receive in the order of the tasks.
  void decide(int32_t send) {
    Sent& sent = sent_[all_.connection_of(end(send).transfer)];
    const int32_t receive = candidates_[static_cast<size_t>(send)];
    int32_t sent_at = send;
    if (receive >= 0 && is_safe(sent, receive, send)) {
      sent_at = receive;
      fused_.send_of[static_cast<size_t>(receive)] = send;
      fused_.receive_of[static_cast<size_t>(send)] = receive;
      fused_.any = true;
    }
    sent = {sent_at, send, sent.last};
  }

  bool is_safe(const Sent& sent, int32_t receive, int32_t send) const {
    if (loop_ == LoopOrder::SubPipelines && sub_pipeline(receive) != sub_pipeline(send)) return false;
    return sent.sent_at < receive && (sent.before_last < 0 || place(sent.before_last) < place(receive));
  }
  int32_t sub_pipeline(int32_t e) const { return pipeline_.sub_pipeline[static_cast<size_t>(end(e).task)]; }

  const TaskGraph& graph_;
  const Pipeline& pipeline_;
  const RankEnds& all_;
  std::span<const RankEnd> ends_;
  const LoopOrder loop_;
  Fused fused_;
  std::vector<int32_t> candidates_;              // of each end that sends: the end that received what it sends
  std::unordered_map<int32_t, int32_t> finals_;  // by chunk: the end that received its last version; walked
                                                 // in any order, as chunks do not meet
  std::unordered_map<int32_t, Sent> sent_;       // by connection
};

}  // namespace

Fused fuse_ends(const TaskGraph& graph, const Pipeline& pipeline, const RankEnds& all, std::span<const RankEnd> ends,
                LoopOrder loop) {
  return Fusing(graph, pipeline, all, ends, loop).run();
}

}  // namespace theseus
