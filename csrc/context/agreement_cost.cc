#include "context/agreement_cost.h"

#include <algorithm>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "context/agreement.h"
#include "context/digest.h"

namespace theseus {
namespace {

constexpr int kMostRanks = 1 << 20;

// All hold the same: something new, or nothing at all.
class SameHoldings : public Holdings {
 public:
  explicit SameHoldings(bool changes) : changes_(changes) {}
  Offer offer() override {
    Offer offer;
    if (!changes_) return offer;
    offer.log_id = offer.position = 1;
    offer.loaded.set(0);
    return offer;
  }
  Confirmation decode(const Offer&) override { return {1, 1, true, -1}; }

 private:
  const bool changes_;
};

// A message that comes to a rank, or (from < 0) its program that does.
struct Arrival {
  double at = 0;
  uint64_t number = 0;
  int from = -1;
  int to = 0;
  std::string bytes;
  bool operator<(const Arrival& other) const { return at != other.at ? at > other.at : number > other.number; }
};

class Cluster {
 public:
  Cluster(const AgreementShape& shape, const AgreementCosts& costs)
      : shape_(shape), costs_(costs), holdings_(shape.changes), free_at_(static_cast<size_t>(shape.ranks)) {
    std::vector<int> hosts;
    for (int rank = 0; rank < shape.ranks; ++rank) hosts.push_back(host_of(rank));
    std::vector<AgreementTree> trees = agreement_trees(hosts);
    for (int rank = 0; rank < shape.ranks; ++rank) {
      machines_.emplace_back(rank, shape.ranks, std::move(trees[static_cast<size_t>(rank)]), holdings_);
    }
    handled_.resize(machines_.size());
    for (int rank = 0; rank < shape.ranks; ++rank) {
      if (!shape.one_arrives || rank == shape.ranks - 1) arrive(rank, shape.spread * place_of(rank));
    }
  }

  AgreementRun run() {
    while (!arrivals_.empty()) {
      Arrival next = std::move(const_cast<Arrival&>(arrivals_.top()));
      arrivals_.pop();
      handle(next);
    }
    AgreementRun result;
    result.latency = last_decided_ - first_begun_;
    result.wait = std::max(0.0, last_decided_ - last_arrived_);
    uint64_t all = 0;
    for (const uint64_t handled : handled_) {
      all += handled;
      result.most_messages = std::max(result.most_messages, handled);
    }
    result.mean_messages = static_cast<double>(all) / static_cast<double>(handled_.size());
    result.messages = all / 2;
    result.remote_messages = remote_;
    return result;
  }

 private:
  int host_of(int rank) const { return rank / shape_.ranks_per_host; }
  // 0 to 1, by rank, in no particular order.
  static double place_of(int rank) {
    return static_cast<double>(Digest().add(static_cast<uint64_t>(rank)).value() >> 11) * 0x1p-53;
  }
  void arrive(int rank, double at) {
    first_begun_ = arrivals_.empty() ? at : std::min(first_begun_, at);
    last_arrived_ = std::max(last_arrived_, at);
    arrivals_.push({at, sent_++, -1, rank, {}});
  }

  void handle(const Arrival& arrival) {
    const auto rank = static_cast<size_t>(arrival.to);
    Agreement& machine = machines_[rank];
    double now = arrival.from < 0 ? arrival.at : std::max(arrival.at, free_at_[rank]) + costs_.receiving;
    const bool was_decided = machine.agreements() > 0;
    std::vector<AgreementMessage> messages;
    if (arrival.from < 0) {
      messages = machine.reach(1);
    } else {
      ++handled_[rank];
      // The machines are honest, so none of them refuses.
      messages = std::move(machine.receive(arrival.from, arrival.bytes).value());
    }
    for (AgreementMessage& message : messages) {
      now = std::max(now, free_at_[rank]) + costs_.sending;
      ++handled_[rank];
      const bool is_local = host_of(arrival.to) == host_of(message.to);
      remote_ += is_local ? 0 : 1;
      const double at = now + (is_local ? costs_.local_message : costs_.remote_message);
      arrivals_.push({at, sent_++, arrival.to, message.to, std::move(message.bytes)});
    }
    free_at_[rank] = std::max(free_at_[rank], now);
    if (!was_decided && machine.agreements() > 0) last_decided_ = std::max(last_decided_, now);
  }

  const AgreementShape shape_;
  const AgreementCosts costs_;
  SameHoldings holdings_;
  std::vector<Agreement> machines_;
  std::vector<double> free_at_;
  std::vector<uint64_t> handled_;
  std::priority_queue<Arrival> arrivals_;
  uint64_t sent_ = 0;
  uint64_t remote_ = 0;
  double first_begun_ = 0;
  double last_arrived_ = 0;
  double last_decided_ = 0;
};

}  // namespace

Result<AgreementRun> run_agreement(const AgreementShape& shape, const AgreementCosts& costs) {
  if (shape.ranks < 1 || shape.ranks > kMostRanks || shape.ranks_per_host < 1) {
    return Status::argument("an agreement of " + std::to_string(shape.ranks) + " ranks, " +
                            std::to_string(shape.ranks_per_host) + " a host: from 1 to " + std::to_string(kMostRanks) +
                            " ranks and at least one a host can be run");
  }
  const auto fits = [](double seconds) { return seconds >= 0 && seconds <= 3600; };
  if (!fits(costs.local_message) || !fits(costs.remote_message) || !fits(costs.receiving) || !fits(costs.sending) ||
      !fits(shape.spread)) {
    return Status::argument("costs of messages and the spread must be seconds from 0 to 3600");
  }
  return Cluster(shape, costs).run();
}

}  // namespace theseus
