#include "runtime/plan_cache.h"

#include <algorithm>

#include "base/log.h"
#include "compiler/lower.h"
#include "compiler/registry.h"
#include "executor/shared_execution.h"

namespace theseus {
namespace {

// One rank alone has no slots; a scaled input still passes through a buffer of one piece.
constexpr size_t kPieceAlone = 256 << 10;

// Data that all ranks together see: what the policy compares.
uint64_t space_bytes(Collective collective, size_t count, DataType type, int ranks) {
  const uint64_t bytes = static_cast<uint64_t>(count) * size_of(type);
  switch (collective) {
    case Collective::AllReduce:
    case Collective::Broadcast:
    case Collective::Reduce: return bytes;
    default: return bytes * static_cast<uint64_t>(ranks);
  }
}

}  // namespace

PlanCache::PlanCache(int rank, const Topology& topology, Links* links, const Forced& forced)
    : rank_(rank), topology_(topology), summary_(summary_of(topology)), links_(links), forced_(forced) {}

Choice PlanCache::choose_for(Collective collective, size_t count, DataType type, int root) const {
  (void)root;
  return choose({collective, space_bytes(collective, count, type, summary_.ranks), summary_}, forced_);
}

Result<const PlanCache::Selection*> PlanCache::select(const CollectiveCall& call, const ResolvedOp& op) {
  if (const Selection* known = recall(call); known != nullptr && op.remembered) return known;
  const Choice choice = choose_for(call.collective, call.count, call.type, call.root);
  Result<PreparedPlan*> plan = prepare(choice.algorithm, call.collective, call.root);
  if (!plan.ok()) return plan.status();
  THESEUS_INFO(kLogTuning, "%s of %zu %s: %s (%s)", name_of(call.collective), call.count, name_of(call.type),
               choice.algorithm.c_str(), choice.reason.c_str());
  const size_t block = call.count * size_of(call.type);
  const BufferShape buffers = buffer_shape(call.collective, summary_.ranks, call.root, rank_);
  Selection selection;
  selection.plan = *plan;
  selection.piece_bytes = piece_bytes_for(*(*plan)->program, call.collective, block);
  selection.input_bytes = block * static_cast<size_t>(buffers.input_blocks);
  selection.output_bytes = block * static_cast<size_t>(buffers.output_blocks);
  // Judged by what all ranks know alike: the root of a Broadcast has input, the others have not.
  selection.try_shared = SharedExecution::worth_trying(
      call.collective, space_bytes(call.collective, call.count, call.type, summary_.ranks), summary_.ranks);
  selection.op = op;
  RequestSignature& signature = selection.tag.signature;
  signature.count = call.count;
  signature.root = call.root;
  signature.collective = call.collective;
  signature.type = call.type;
  signature.op = op.announced;
  signature.plan = static_cast<uint16_t>((*plan)->digest);
  signature.rank = static_cast<int16_t>(rank_);
  selection.tag.base = base_hash(signature);
  Line& line = op.remembered ? recent_[place_of(call)] : unremembered_;
  line.key = key_of(call);
  line.selection = selection;
  return &line.selection;
}

Result<PreparedPlan*> PlanCache::prepare(const std::string& algorithm, Collective collective, int root) {
  const auto key = std::make_tuple(algorithm, collective, root);
  if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
  Result<Algorithm> built = build(algorithm, collective, topology_, root);
  if (!built.ok()) return built.status();
  Result<Plan> plan = lower(*built, topology_, rank_);
  if (!plan.ok()) return plan.status();
  PreparedPlan prepared;
  prepared.algorithm = plan->name;
  // Ranks hold different parts, so what they compare names the plan; the builders make the same of it everywhere.
  for (const char c : plan->name) prepared.digest = prepared.digest * 31 + static_cast<uint8_t>(c);
  class NoPorts final : public PortSource {
    Result<SendPort*> send_port(int, int, int) override { return Status::internal("one rank has no peers"); }
    Result<RecvPort*> recv_port(int, int, int) override { return Status::internal("one rank has no peers"); }
  } none;
  Result<std::unique_ptr<Program>> program =
      Program::build(*plan, rank_, links_ != nullptr ? static_cast<PortSource&>(*links_) : none);
  if (!program.ok()) return program.status();
  prepared.program = std::move(*program);
  prepared.execution = std::make_unique<Execution>(*prepared.program);
  return &plans_.emplace(key, std::move(prepared)).first->second;
}

// What a slot holds; or a whole chunk, where no message of the request goes through a slot, because every rank reads
// its peers' memory directly.
size_t PlanCache::piece_bytes_for(const Program& program, Collective collective, size_t block_bytes) const {
  if (links_ == nullptr) return kPieceAlone;
  const bool both_ways = collective == Collective::AllGather || collective == Collective::AllToAll;
  if (both_ways && summary_.hosts == 1 && program.only_copies() && links_->fetches(block_bytes)) {
    return std::max(links_->slot_bytes(), block_bytes);
  }
  return links_->slot_bytes();
}

}  // namespace theseus
