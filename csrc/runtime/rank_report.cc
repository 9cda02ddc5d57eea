#include "runtime/rank_report.h"

#include <algorithm>

#include "net/agent_client.h"
#include "net/process_server.h"
#include "net/wire.h"
#include "runtime/job_log.h"

namespace theseus {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kNow = 0;
constexpr uint32_t kEnd = 1;
constexpr double kSeconds = 1;
constexpr size_t kLongestText = 128;

WireWriter head(const RankReportFacts& facts, uint32_t what) {
  WireWriter out;
  out.number(kVersion).number(what).text(facts.communicator);
  out.number(static_cast<uint32_t>(facts.rank)).number(static_cast<uint32_t>(facts.ranks));
  return out;
}

std::string_view shortened(const std::string& text) { return std::string_view(text).substr(0, kLongestText); }

}  // namespace

std::string encode(const RankReportFacts& facts) {
  WireWriter out = head(facts, kNow);
  out.text(shortened(facts.name));
  const ContextState& context = facts.context;
  out.number(context.epoch).number(context.installed).number(context.read).number(context.agreements);
  out.number(context.next_k).number(static_cast<uint32_t>(context.held_back_by));
  out.number(facts.resource_bytes).number(facts.resource_nodes);
  out.number(facts.tte.samples).number(facts.tte.p50_ns).number(facts.tte.p99_ns);
  out.number(static_cast<uint32_t>(facts.selections.size()));
  for (const SelectionRow& row : facts.selections) {
    out.text(name_of(row.collective)).number(row.size_class).number(static_cast<uint32_t>(row.origin));
    out.number(uint32_t{row.may_share}).number(row.since).text(shortened(row.schedule));
  }
  return out.take();
}

std::string encode_end(const RankReportFacts& facts) { return head(facts, kEnd).take(); }

std::shared_ptr<RankReport> RankReport::start(const CommId& communicator, const std::string& name, int rank, int ranks,
                                              std::weak_ptr<const Adaptation> adaptation) {
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return nullptr;
  std::shared_ptr<RankReport> own(new RankReport);
  own->loop_ = &(*server)->loop();
  own->fixed_.communicator = communicator.to_string();
  own->fixed_.name = name;
  own->fixed_.rank = rank;
  own->fixed_.ranks = ranks;
  own->adaptation_ = std::move(adaptation);
  own->timer_ = own->loop_->add_timer(kSeconds, [weak = std::weak_ptr(own)] {
    if (const auto report = weak.lock()) report->tick();
  });
  return own;
}

void RankReport::stop() {
  loop_->remove_timer(timer_);
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  AgentClient::instance().report(encode_end(fixed_));
}

void RankReport::tick() {
  const std::shared_ptr<const Adaptation> adaptation = adaptation_.lock();
  if (adaptation == nullptr || !AgentClient::instance().connected()) return;
  RankReportFacts facts = fixed_;
  facts.context = adaptation->state();
  facts.context.read = std::max(facts.context.read, JobLog::instance().position());  // agreements look less often
  facts.resource_bytes = resource_bytes_.load(std::memory_order_relaxed);
  facts.resource_nodes = resource_nodes_.load(std::memory_order_relaxed);
  facts.tte = samples_.quantiles();
  facts.selections = selections_.rows();
  const std::lock_guard lock(mutex_);
  if (!stopped_) AgentClient::instance().report(encode(facts));
}

}  // namespace theseus
