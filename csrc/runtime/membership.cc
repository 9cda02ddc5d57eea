#include "runtime/membership.h"

#include <algorithm>

#include "base/env.h"
#include "net/agent_client.h"
#include "net/process_server.h"
#include "net/wire.h"
#include "transport/flow_page.h"

namespace theseus {
namespace {

constexpr double kTickSeconds = 0.25;
constexpr int kStartTicks = 4;  // a job that ends sooner never sees an agent
constexpr uint8_t kAddress = 1;
constexpr uint8_t kList = 2;

}  // namespace

std::shared_ptr<Membership> Membership::start(const CommId& communicator, int rank, const std::vector<Peer>& peers,
                                              const Topology& topology, Send send) {
  Result<ProcessServer*> server = ProcessServer::get();
  if (!server.ok()) return nullptr;
  std::shared_ptr<Membership> own(new Membership);
  own->loop_ = &(*server)->loop();
  own->communicator_ = communicator;
  own->rank_ = rank;
  own->job_ = settings::job_id().empty() ? communicator.to_string() : settings::job_id();
  own->send_ = std::move(send);
  for (const Peer& peer : peers) own->hosts_.push_back(peer.host);
  for (const std::vector<int>& ranks : ranks_by_host(topology)) own->leaders_.push_back(ranks.front());
  own->timer_ = own->loop_->add_timer(kTickSeconds, [weak = std::weak_ptr(own)] {
    if (const auto membership = weak.lock()) membership->tick();
  });
  return own;
}

void Membership::stop() {
  loop_->remove_timer(timer_);
  const std::lock_guard lock(mutex_);
  send_ = nullptr;
}

void Membership::tick() {
  if (++ticks_ < kStartTicks) return;
  AgentClient& agent = AgentClient::instance();
  if (ticks_ == kStartTicks) agent.start(job_, hosts_[static_cast<size_t>(rank_)], flow_page_fd());
  const bool leads = std::find(leaders_.begin(), leaders_.end(), rank_) != leaders_.end();
  if (!leads || told_ || agent.raft_address().empty()) return;
  told_ = true;
  const std::string& host = hosts_[static_cast<size_t>(rank_)];
  if (rank_ == 0) return add(host, agent.raft_address());
  WireWriter out;
  out.number(kAddress).text(host).text(agent.raft_address());
  const std::lock_guard lock(mutex_);
  if (send_) send_(0, out.take());
}

void Membership::receive(int from, const std::string& bytes) {
  WireReader in(bytes);
  const auto kind = in.number<uint8_t>();
  if (kind == kAddress && rank_ == 0 && from >= 0 && from < static_cast<int>(hosts_.size())) {
    const std::string host = in.text();
    const std::string address = in.text();
    if (in.at_end() && host == hosts_[static_cast<size_t>(from)]) add(host, address);
  } else if (kind == kList && from == 0) {
    take_list(bytes);
  }
}

void Membership::add(const std::string& host, const std::string& address) {
  agents_[host] = address;
  if (agents_.size() < leaders_.size()) return;
  WireWriter out;
  out.number(kList).number(static_cast<uint32_t>(leaders_.size()));
  // In the order in which schedules number hosts: by first rank.
  for (const int leader : leaders_) {
    const std::string& host = hosts_[static_cast<size_t>(leader)];
    out.text(host).text(agents_[host]);
  }
  const std::string list = out.take();
  take_list(list);
  const std::lock_guard lock(mutex_);
  for (const int leader : leaders_) {
    if (leader != 0 && send_) send_(leader, list);
  }
}

void Membership::take_list(const std::string& bytes) {
  WireReader in(bytes);
  (void)in.number<uint8_t>();
  const auto count = in.number<uint32_t>();
  std::vector<std::pair<std::string, std::string>> members;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string host = in.text();
    std::string address = in.text();
    members.emplace_back(std::move(host), std::move(address));
  }
  if (in.at_end()) AgentClient::instance().set_members(communicator_.to_string(), std::move(members));
}

}  // namespace theseus
