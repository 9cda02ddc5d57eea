// One communicator's share in the job's context: offers what this rank holds, installs what all agreed on, selects.
//
// The request path asks next_event() only; what is agreed is installed before exactly the request that the agreement
// named. The watch thread answers peers meanwhile, so nobody waits for a rank's application (AGREEMENT: a rank that is
// behind contributes all the same).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "context/agreement.h"
#include "context/hooks.h"
#include "policy/selector.h"
#include "runtime/agreement_links.h"
#include "runtime/communicator.h"
#include "runtime/job_log.h"
#include "runtime/mailboxes.h"
#include "runtime/membership.h"
#include "runtime/schedules.h"

namespace theseus {

struct Arrival {
  bool changed = false;  // selections made before are void
  bool waited = false;
};

class Adaptation final : public Holdings, public JobLogListener, public std::enable_shared_from_this<Adaptation> {
 public:
  static Result<std::shared_ptr<Adaptation>> start(const CommId& communicator, int rank, const std::vector<Peer>& peers,
                                                   const Topology& topology, Links& data_links);
  ~Adaptation() override;

  // --- by whoever holds the communicator's lock
  // The first request id for which arrive() must be called before it is selected.
  uint64_t next_event() const { return next_event_; }
  // Does what is due before `request`: joins an agreement, waits for one, installs it. `pause` is asked between looks
  // and ends the wait by failing.
  Result<Arrival> arrive(uint64_t request, const std::function<Status()>& pause);
  bool has_schedules(Collective collective) const { return selector_ != nullptr && !selector_->empty(collective); }
  SelectedSchedule select(const PolicyRequest& request, uint64_t id) { return selector_->select(request, id); }
  std::vector<ScheduleVerdict> explain(const PolicyRequest& request, uint64_t id);
  std::shared_ptr<const LoadedSchedule> schedule(uint32_t id) const { return schedules_->find(id); }
  // Of the installed snapshot: see there.
  const std::vector<int32_t>& replaces() const { return installed_.replaces; }
  // Until no peer can need this rank for an agreement that has started here.
  Status finish(const std::function<Status()>& pause);

  // Before what `data_links` of start() names goes: nothing on the watch thread touches it afterwards.
  void close();

  ContextState state() const;

 private:
  Adaptation(const CommId& communicator, int rank, const std::vector<Peer>& peers, const Topology& topology);

  // On the watch thread, or under the communicator's lock; under mutex_.
  Offer offer() override;
  Confirmation decode(const Offer& candidate) override;
  void log_grew() override { schedules_->learn(); }

  // Under mutex_.
  // Sends what the machine has to say after a step, and keeps the books.
  void after_step(std::vector<AgreementMessage> messages);
  void take(int from, std::string_view bytes);
  // Reads what lies in the mailboxes. Whoever might wait for this rank is so served.
  void look();
  // Makes the ranks next to this one look, and these theirs: some rank's requests are elsewhere.
  void nudge();

  void receive(int from, AgreementLinks::Kind kind, const std::string& bytes);
  Status wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& over,
              const std::function<Status()>& pause);
  // The next request before which this rank has something to do, or wants to look.
  uint64_t event_after(uint64_t request) const;
  bool install(const Decision& decision);
  void install_candidate(const Decision& decision);
  uint32_t propose_k(uint64_t request) const;
  // What a request takes, by those since the last boundary and by what was believed before.
  double seconds_each(uint64_t request) const;

  const CommId communicator_;
  const int rank_;
  const std::shared_ptr<Schedules> schedules_;
  std::unique_ptr<AgreementLinks> links_;
  Mailboxes mailboxes_;                     // empty unless all ranks share one host
  std::shared_ptr<Membership> membership_;  // null where no agent is to be asked

  mutable std::mutex mutex_;  // guards machine_, broken_, candidates_ and what state() tells
  std::condition_variable decided_;
  std::unique_ptr<Agreement> machine_;
  Status broken_;                    // a peer that sent nonsense
  std::deque<Snapshot> candidates_;  // what decode() kept for decisions that are not taken yet
  ContextState state_;
  uint32_t next_k_ = 100;
  uint64_t begun_ns_ = 0;  // when this rank joined the agreement under way; 0: it has not
  uint64_t decided_count_ = 0;
  uint64_t nudged_ns_ = 0;  // when the others were last nudged

  // Under the communicator's lock.
  uint64_t next_event_ = 1;
  Snapshot installed_;
  Hooks hooks_;
  std::unique_ptr<Selector> selector_;
  uint64_t boundary_ = 1;  // before which request the last agreement was installed, and when
  uint64_t boundary_ns_ = 0;
  double seconds_each_ = 0;
};

}  // namespace theseus
