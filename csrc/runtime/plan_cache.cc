#include "runtime/plan_cache.h"

#include <algorithm>

#include "base/log.h"
#include "compiler/compile.h"
#include "compiler/registry.h"
#include "executor/shared_execution.h"
#include "schedule/places.h"

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

Result<Scheduling> parse_scheduling(const std::string& text) {
  if (text == "per-connection") return Scheduling::PerConnection;
  // The paper's own rules walk a ring, or the folds of direct, one chunk at a time (compiler/critical_path.h).
  if (text == "hpds") return Scheduling::HpdsImproved;
  return Status::argument("THESEUS_SCHEDULING is '" + text + "'; it can be per-connection or hpds");
}

PlanCache::PlanCache(int rank, const Topology& topology, Links* links, const Forced& forced, Scheduling scheduling)
    : rank_(rank),
      topology_(topology),
      summary_(summary_of(topology)),
      links_(links),
      forced_(forced),
      scheduling_(scheduling) {}

Choice PlanCache::choose_for(Collective collective, size_t count, DataType type, int root) const {
  (void)root;
  return choose({collective, space_bytes(collective, count, type, summary_.ranks), summary_}, forced_);
}

PolicyRequest PlanCache::policy_request(const CollectiveCall& call, RedOp op) const {
  return {.collective = call.collective,
          .type = call.type,
          .op = op,
          .root = call.root,
          .count = call.count,
          .bytes = space_bytes(call.collective, call.count, call.type, summary_.ranks),
          .ranks = summary_.ranks,
          .hosts = summary_.hosts,
          .rails = summary_.rails};
}

void PlanCache::forget() {
  for (Line& line : recent_) line.key = {};
  std::erase_if(scheduled_, [this](const auto& entry) { return adaptation_->schedule(entry.first.first) == nullptr; });
}

Result<const PlanCache::Selection*> PlanCache::select(const CollectiveCall& call, const ResolvedOp& op, uint64_t id) {
  if (const Selection* known = recall(call); known != nullptr && op.remembered) return known;
  const size_t block = call.count * size_of(call.type);
  const BufferShape buffers = buffer_shape(call.collective, summary_.ranks, call.root, rank_);
  Selection selection;
  selection.input_bytes = block * static_cast<size_t>(buffers.input_blocks);
  selection.output_bytes = block * static_cast<size_t>(buffers.output_blocks);
  selection.op = op;
  RequestSignature& signature = selection.tag.signature;
  signature.count = call.count;
  signature.root = call.root;
  signature.collective = call.collective;
  signature.type = call.type;
  signature.op = op.announced;
  signature.rank = static_cast<int16_t>(rank_);
  bool remembered = op.remembered;
  if (call.plan != 0) {
    Loaded* known = loaded(call.plan);
    if (known == nullptr) return Status::internal("a plan that was checked is gone");
    use_loaded(*known, call, selection);
    // A remembered call is not asked again how its buffers lie.
    remembered = remembered && known->description.in_place && known->description.out_of_place;
  } else {
    bool scheduled = false;
    if (adaptation_ != nullptr && adaptation_->has_schedules(call.collective)) {
      Result<bool> used = use_schedule(call, op, id, selection, remembered);
      if (!used.ok()) return used.status();
      scheduled = *used;
    }
    if (!scheduled) THESEUS_TRY(use_chosen(call, selection));
  }
  selection.tag.base = base_hash(signature);
  Line& line = remembered ? recent_[place_of(call)] : unremembered_;
  line.key = remembered ? key_of(call) : Key{};
  line.selection = selection;
  return &line.selection;
}

Result<bool> PlanCache::use_schedule(const CollectiveCall& call, const ResolvedOp& op, uint64_t id,
                                     Selection& selection, bool& remembered) {
  const SelectedSchedule selected = adaptation_->select(policy_request(call, op.announced), id);
  remembered &= selected.remembered;
  if (selected.schedule < 0) return false;
  const auto schedule = adaptation_->schedule(static_cast<uint32_t>(selected.schedule));
  // Never another one instead: the others run what was selected.
  if (schedule == nullptr) return Status::internal("a schedule that was agreed on is gone");
  if ((op.scaled && !schedule->scales) || (schedule->root >= 0 && schedule->root != call.root)) return false;
  Result<PreparedPlan*> plan = prepare_schedule(*schedule, call.root);
  if (!plan.ok()) return plan.status();
  selection.plan = *plan;
  selection.piece_bytes = links_ == nullptr ? kPieceAlone : links_->slot_bytes();
  const auto chunks = static_cast<size_t>(schedule->plan.chunks_per_block);
  if (!schedule->any_count && call.count % chunks != 0) selection.padded_count = (call.count / chunks + 1) * chunks;
  selection.tag.signature.plan =
      static_cast<uint16_t>(kLoadedPlan | kScheduledPlan | (schedule->id & (kScheduledPlan - 1)));
  THESEUS_INFO(kLogTuning, "%s of %zu %s: schedule '%s'", name_of(call.collective), call.count, name_of(call.type),
               schedule->name.c_str());
  return true;
}

Result<PreparedPlan*> PlanCache::prepare_schedule(const LoadedSchedule& schedule, int root) {
  const auto key = std::make_pair(schedule.id, is_rooted(schedule.collective) ? root : 0);
  if (const auto found = scheduled_.find(key); found != scheduled_.end()) return &found->second;
  PreparedPlan prepared;
  const bool is_built_in = !schedule.algorithm.empty();
  if (is_built_in && key.second != std::max(schedule.root, 0)) {
    Result<Algorithm> built = build(schedule.algorithm, schedule.collective, topology_, root);
    if (!built.ok()) return built.status();
    CompileOptions options;
    options.scheduling = Scheduling::PerConnection;
    Result<Plan> plan = compile(*built, topology_, options, rank_);
    if (!plan.ok()) return plan.status();
    THESEUS_TRY(resolve(*plan, /*share_slots=*/true, prepared));
  } else {
    THESEUS_TRY(resolve(schedule.plan, /*share_slots=*/is_built_in, prepared));
  }
  if (!schedule.any_count) {
    prepared.staging = std::make_unique<Staging>(buffer_shape(schedule.collective, summary_.ranks, root, rank_), rank_,
                                                 /*in_place=*/false);
  }
  prepared.algorithm = schedule.name;
  return &scheduled_.emplace(key, std::move(prepared)).first->second;
}

Status PlanCache::use_chosen(const CollectiveCall& call, Selection& selection) {
  const Choice choice = choose_for(call.collective, call.count, call.type, call.root);
  Result<PreparedPlan*> plan = prepare(choice.algorithm, call.collective, call.root);
  if (!plan.ok()) return plan.status();
  THESEUS_INFO(kLogTuning, "%s of %zu %s: %s (%s)", name_of(call.collective), call.count, name_of(call.type),
               choice.algorithm.c_str(), choice.reason.c_str());
  selection.plan = *plan;
  selection.piece_bytes = piece_bytes_for(*(*plan)->program, call.collective, call.count * size_of(call.type));
  // Judged by what all ranks know alike: the root of a Broadcast has input, the others have not.
  selection.try_shared = SharedExecution::worth_trying(
      call.collective, space_bytes(call.collective, call.count, call.type, summary_.ranks), summary_.ranks);
  selection.tag.signature.plan = static_cast<uint16_t>((*plan)->digest) & (kLoadedPlan - 1);
  return {};
}

void PlanCache::use_loaded(Loaded& loaded, const CollectiveCall& call, Selection& selection) const {
  selection.plan = &loaded.prepared;
  selection.piece_bytes = links_ == nullptr ? kPieceAlone : links_->slot_bytes();
  const auto chunks = static_cast<size_t>(loaded.description.chunks_per_block);
  if (!loaded.description.any_count && call.count % chunks != 0) {
    selection.padded_count = (call.count / chunks + 1) * chunks;
  }
  selection.tag.signature.plan = static_cast<uint16_t>(kLoadedPlan + loaded.description.id);
}

PlanCache::Loaded* PlanCache::loaded(int id) const {
  const std::lock_guard lock(loaded_mutex_);
  return id >= 1 && static_cast<size_t>(id) <= loaded_.size() ? loaded_[static_cast<size_t>(id) - 1].get() : nullptr;
}

Result<LoadedPlan> PlanCache::add_loaded(LoadedPlan description, PreparedPlan prepared) {
  const std::lock_guard lock(loaded_mutex_);
  if (loaded_.size() + 1 >= kScheduledPlan) {
    return Status::usage("load_plan: a communicator holds at most " + std::to_string(kScheduledPlan - 1) + " plans");
  }
  description.id = static_cast<int>(loaded_.size()) + 1;
  if (!description.any_count) {
    prepared.staging =
        std::make_unique<Staging>(buffer_shape(description.collective, summary_.ranks, description.root, rank_), rank_,
                                  !description.out_of_place);
  }
  loaded_.push_back(std::make_unique<Loaded>(Loaded{description, std::move(prepared)}));
  return description;
}

Status PlanCache::check_loaded(const CollectiveCall& call, std::optional<bool> in_place, bool scaled) const {
  const Loaded* known = loaded(call.plan);
  if (known == nullptr) {
    return Status::argument("plan " + std::to_string(call.plan) + " is none that this communicator has loaded");
  }
  const LoadedPlan& plan = known->description;
  const std::string who = "plan '" + plan.name + "' ";
  if (plan.collective != call.collective) {
    return Status::argument(who + "does " + name_of(plan.collective) + ", not " + name_of(call.collective));
  }
  if (is_rooted(call.collective) && plan.root != call.root) {
    return Status::argument(who + "has root " + std::to_string(plan.root) + ", not " + std::to_string(call.root));
  }
  if (in_place.has_value() && !(*in_place ? plan.in_place : plan.out_of_place)) {
    return Status::argument(who + (*in_place ? "is wrong in place: use separate buffers"
                                             : "is right in place only: give the same buffer for both"));
  }
  if (scaled && !plan.scales) {
    return Status::argument(who + "is not right for reductions that scale the input (avg of floats, premulsum)");
  }
  return {};
}

Result<PreparedPlan*> PlanCache::prepare(const std::string& algorithm, Collective collective, int root) {
  const auto key = std::make_tuple(algorithm, collective, root);
  if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
  Result<Algorithm> built = build(algorithm, collective, topology_, root);
  if (!built.ok()) return built.status();
  CompileOptions options;
  options.scheduling = scheduling_;
  options.allocation = TbAllocation::StateBasedApart;
  // Messages inside hosts can then no longer pass by reference; a single chunk is a small message.
  options.fuse = summary_.ranks_per_host == 1 || built->chunks == 1;
  Result<Plan> plan = compile(*built, topology_, options, rank_);
  if (!plan.ok()) return plan.status();
  PreparedPlan prepared;
  // Ranks hold different parts, so what they compare names the plan; the builders make the same of it everywhere.
  for (const char c : plan->name) prepared.digest = prepared.digest * 31 + static_cast<uint8_t>(c);
  THESEUS_TRY(resolve(*plan, /*share_slots=*/true, prepared));
  return &plans_.emplace(key, std::move(prepared)).first->second;
}

Status PlanCache::resolve(const Plan& plan, bool share_slots, PreparedPlan& prepared) {
  class NoPorts final : public PortSource {
    Result<SendPort*> send_port(int, int, int) override { return Status::internal("one rank has no peers"); }
    Result<RecvPort*> recv_port(int, int, int) override { return Status::internal("one rank has no peers"); }
  } none;
  PortSource& ports = links_ != nullptr ? static_cast<PortSource&>(*links_) : none;
  Result<std::unique_ptr<Program>> program = Program::build(plan, rank_, ports, share_slots);
  if (!program.ok()) return program.status();
  prepared.algorithm = plan.name;
  prepared.program = std::move(*program);
  prepared.execution = std::make_unique<Execution>(*prepared.program);
  return {};
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
