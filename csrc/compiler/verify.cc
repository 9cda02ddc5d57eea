#include "compiler/verify.h"

#include <algorithm>
#include <vector>

#include "compiler/plan_graph.h"
#include "compiler/symbolic.h"

namespace theseus {
namespace {

// One way of calling: where Input and Output are one memory, or two.
Status verify_call(const PlanGraph& graph, const std::vector<Event>& order, const VerifyOptions& options,
                   bool in_place) {
  THESEUS_TRY(check_races(graph, order, in_place, options.work_limit));
  return check_values(graph, order, in_place, options.equal_bits);
}

}  // namespace

Status verify(const Plan& whole, const VerifyOptions& options) {
  if (options.slots < 0) return Status::argument("verify: the number of slots cannot be negative");
  auto graph = PlanGraph::create(whole, options.micro_batches, options.work_limit);
  if (!graph.ok()) return graph.status();
  auto order = graph->order(std::max(options.slots, 1));
  if (!order.ok()) return order.status();
  if (options.slots == 0 || whole.rendezvous_safe) THESEUS_TRY(graph->check_rendezvous());
  if (options.out_of_place) THESEUS_TRY(verify_call(*graph, *order, options, false));
  if (options.in_place && whole.collective != Collective::AllToAll) {
    THESEUS_TRY(verify_call(*graph, *order, options, true));
  }
  return {};
}

}  // namespace theseus
