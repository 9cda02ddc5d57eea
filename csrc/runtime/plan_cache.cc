#include "runtime/plan_cache.h"

#include <algorithm>

#include "base/log.h"
#include "compiler/compile.h"
#include "compiler/registry.h"
#include "executor/shared_execution.h"
#include "resource/family.h"
#include "runtime/device_rank.h"
#include "schedule/places.h"

namespace theseus {
namespace {

// One rank alone has no slots; a scaled input still passes through a buffer of one piece.
constexpr size_t kPieceAlone = 256 << 10;

// How the names of the healer's schedules begin.
constexpr std::string_view kHealed = "heal.";

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

class NoPorts final : public PortSource {
  Result<SendPort*> send_port(int, int, int) override { return Status::internal("one rank has no peers"); }
  Result<RecvPort*> recv_port(int, int, int) override { return Status::internal("one rank has no peers"); }
};

PortSource& ports_of(Links* links) {
  static NoPorts none;
  return links != nullptr ? static_cast<PortSource&>(*links) : none;
}

}  // namespace

Result<Scheduling> parse_scheduling(const std::string& text) {
  if (text == "per-connection") return Scheduling::PerConnection;
  // The paper's own rules walk a ring, or the folds of direct, one chunk at a time (compiler/critical_path.h).
  if (text == "hpds") return Scheduling::HpdsImproved;
  return Status::argument("THESEUS_SCHEDULING is '" + text + "'; it can be per-connection or hpds");
}

PlanCache::PlanCache(int rank, const Topology& topology, Links* links, const Forced& forced, Scheduling scheduling,
                     size_t resource_bytes, DeviceRank* device)
    : rank_(rank),
      topology_(topology),
      summary_(summary_of(topology)),
      links_(links),
      forced_(forced),
      scheduling_(scheduling),
      builder_(rank, ports_of(links), *this),
      cuda_builder_(device == nullptr ? nullptr
                                      : std::unique_ptr<CudaBuilder>(
                                            new CudaBuilder(rank, device->device(), device->kernels(), *this))),
      tree_(cuda_builder_ == nullptr ? static_cast<Builder&>(builder_) : *cuda_builder_, resource_bytes) {}

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

bool PlanCache::is_gone(uint64_t tag) const {
  return !is_predefined(tag) && adaptation_->schedule(schedule_of(tag)) == nullptr;
}

void PlanCache::forget() {
  for (Line& line : recent_) line.key = {};
  // What a request under way holds goes with it, and its name at the next context.
  for (const uint64_t tag : tree_.schedules()) {
    if (is_gone(tag)) (void)tree_.unload(tag);
  }
  std::erase_if(known_, [this](const auto& entry) { return is_gone(entry.first) && !tree_.holds(entry.first); });
  report_resources();
}

void PlanCache::report_resources() {
  if (report_ == nullptr) return;
  const TreeStatistics statistics = tree_.statistics();
  size_t nodes = statistics.retired;
  for (const LayerStatistics& layer : statistics.layers) nodes += layer.vertices;
  report_->resources(statistics.bytes, nodes);
}

void PlanCache::report_selection(const CollectiveCall& call, const Selection& selection, uint64_t id) {
  if (report_ == nullptr) return;
  const KnownPlan& plan = *selection.plan;
  const bool built_in = !plan.algorithm.empty();
  const ScheduleOrigin origin = built_in         ? ScheduleOrigin::BuiltIn
                                : call.plan != 0 ? ScheduleOrigin::Loaded
                                                 : ScheduleOrigin::Context;
  report_->selections().note(call.collective, space_bytes(call.collective, call.count, call.type, summary_.ranks),
                             {plan.tag, built_in ? plan.algorithm : plan.name, origin, selection.try_shared}, id);
}

Result<PlanCache::Selected> PlanCache::select(const CollectiveCall& call, const ResolvedOp& op, uint64_t id) {
  Selected selected;
  if (const Selection* known = recall(call); known != nullptr && op.remembered) {
    selected.lease = tree_.recall(known->trail);
    selected.selection = known;
    if (selected.lease) return selected;
  }
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
    const Loaded* known = loaded(call.plan);
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
    if (!scheduled) use_chosen(call, selection);
  }
  THESEUS_TRY(walk(call, selected, selection));
  report_selection(call, selection, id);
  if (selected.set_up || selected.migrated || tree_.last_visits().back() != Visit::Reused) report_resources();
  signature.plan = selection.plan->signature;
  selection.tag.base = base_hash(signature);
  Line& line = remembered ? recent_[place_of(call)] : unremembered_;
  line.key = remembered ? key_of(call) : Key{};
  line.selection = selection;
  selected.selection = &line.selection;
  return selected;
}

Status PlanCache::walk(const CollectiveCall& call, Selected& selected, Selection& selection) {
  const size_t count = selection.padded_count != 0 ? selection.padded_count : call.count;
  Result<ResourceTree::Lease> walked = tree_.walk(
      {selection.plan->family, selection.plan->tag, {}, HostBuilder::range_of(count, call.type, selection.op.op)});
  if (!walked.ok()) return walked.status();
  selected.lease = std::move(*walked);
  selection.trail = selected.lease.trail();
  if (cuda_builder_ == nullptr) selection.held = host_resources(selected.lease);
  for (const Layer layer : {Layer::Schedule, Layer::Buffer, Layer::Range}) {
    const Visit visit = tree_.last_visits()[static_cast<size_t>(layer)];
    selected.set_up |= visit == Visit::Built && layer != Layer::Range;
    selected.migrated |= visit == Visit::Migrated || visit == Visit::Copied;
  }
  return {};
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
  selection.plan = &plan_of_schedule(*schedule, call.root);
  const auto chunks = static_cast<size_t>(schedule->plan.chunks_per_block);
  if (!schedule->any_count && call.count % chunks != 0) selection.padded_count = (call.count / chunks + 1) * chunks;
  THESEUS_INFO(kLogTuning, "%s of %zu %s: schedule '%s'", name_of(call.collective), call.count, name_of(call.type),
               schedule->name.c_str());
  return true;
}

void PlanCache::use_chosen(const CollectiveCall& call, Selection& selection) {
  const Choice choice = choose_for(call.collective, call.count, call.type, call.root);
  THESEUS_INFO(kLogTuning, "%s of %zu %s: %s (%s)", name_of(call.collective), call.count, name_of(call.type),
               choice.algorithm.c_str(), choice.reason.c_str());
  selection.plan = &plan_of_algorithm(choice.algorithm, call.collective, call.root);
  // Judged by what all ranks know alike: the root of a Broadcast has input, the others have not.
  selection.try_shared = SharedExecution::worth_trying(
      call.collective, space_bytes(call.collective, call.count, call.type, summary_.ranks), summary_.ranks);
}

void PlanCache::use_loaded(const Loaded& loaded, const CollectiveCall& call, Selection& selection) const {
  selection.plan = loaded.plan;
  const auto chunks = static_cast<size_t>(loaded.description.chunks_per_block);
  if (!loaded.description.any_count && call.count % chunks != 0) {
    selection.padded_count = (call.count / chunks + 1) * chunks;
  }
}

KnownPlan& PlanCache::add(uint64_t family, uint64_t tag, Collective collective, int root) {
  KnownPlan& plan = known_[tag];
  plan.family = family;
  plan.tag = tag;
  plan.collective = collective;
  plan.root = root;
  return plan;
}

Staging PlanCache::staging_of(const KnownPlan& plan, bool in_place) const {
  return {buffer_shape(plan.collective, summary_.ranks, plan.root, rank_), rank_, in_place};
}

KnownPlan& PlanCache::plan_of_algorithm(const std::string& algorithm, Collective collective, int root) {
  const auto [number, fresh] = numbers_.try_emplace({algorithm, collective, root}, predefined_number(next_number_));
  if (!fresh) return known_.at(number->second);
  ++next_number_;
  KnownPlan& plan = add(number->second, number->second, collective, root);
  plan.algorithm = algorithm;
  return plan;
}

KnownPlan& PlanCache::plan_of_schedule(const LoadedSchedule& schedule, int root) {
  if (!is_rooted(schedule.collective)) root = 0;
  const uint64_t tag = resource_number(schedule.id, root);
  if (const auto found = known_.find(tag); found != known_.end()) return found->second;
  KnownPlan& plan = add(family_of_schedule(schedule, root), tag, schedule.collective, root);
  plan.name = schedule.name;
  plan.signature = static_cast<uint16_t>(kLoadedPlan | kScheduledPlan | (schedule.id & (kScheduledPlan - 1)));
  if (!schedule.any_count) plan.staging = staging_of(plan, /*in_place=*/false);
  return plan;
}

// Of the healer's schedules, heal.<health map>.<collective>.<least bytes>, those of one map are usable at a time: they
// give way to each other without saying so.
uint64_t PlanCache::family_of_schedule(const LoadedSchedule& schedule, int root) {
  const uint32_t oldest = family_of(adaptation_->replaces(), schedule.id);
  const size_t map_ends = schedule.name.find('.', kHealed.size());
  if (oldest != schedule.id || !schedule.name.starts_with(kHealed) || map_ends == std::string::npos) {
    return resource_number(oldest, root);
  }
  const auto [family, fresh] =
      healed_.try_emplace(schedule.name.substr(map_ends) + "/" + std::to_string(root), predefined_number(next_number_));
  if (fresh) ++next_number_;
  return family->second;
}

const PlanCache::Loaded* PlanCache::loaded(int id) const {
  const std::lock_guard lock(loaded_mutex_);
  return id >= 1 && static_cast<size_t>(id) <= loaded_.size() ? loaded_[static_cast<size_t>(id) - 1].get() : nullptr;
}

Status PlanCache::try_out(const Plan& plan) {
  if (cuda_builder_ != nullptr) return cuda_builder_->try_out(plan);
  return Program::build(plan, rank_, ports_of(links_), /*share_slots=*/false).status();
}

Result<LoadedPlan> PlanCache::add_loaded(LoadedPlan description, Plan plan) {
  const std::lock_guard lock(loaded_mutex_);
  if (loaded_.size() + 1 >= kScheduledPlan) {
    return Status::usage("load_plan: a communicator holds at most " + std::to_string(kScheduledPlan - 1) + " plans");
  }
  description.id = static_cast<int>(loaded_.size()) + 1;
  const uint64_t tag = predefined_number(next_number_++);
  const int root = is_rooted(description.collective) ? description.root : 0;
  KnownPlan& known = add(tag, tag, description.collective, root);
  known.name = description.name;
  known.signature = static_cast<uint16_t>(kLoadedPlan + description.id);
  known.loaded = std::make_shared<const Plan>(std::move(plan));
  if (!description.any_count) known.staging = staging_of(known, !description.out_of_place);
  loaded_.push_back(std::make_unique<const Loaded>(description, &known));
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

Result<SchedulePlan> PlanCache::plan_of(uint64_t tag) {
  const auto known = known_.find(tag);
  if (known == known_.end()) return Status::internal("resources are asked for a plan that is gone");
  if (known->second.loaded != nullptr) return SchedulePlan{known->second.loaded, /*share_slots=*/false};
  return known->second.algorithm.empty() ? take_schedule(known->second) : compile_algorithm(known->second);
}

Result<SchedulePlan> PlanCache::compile_algorithm(KnownPlan& known) const {
  Result<Algorithm> built = build(known.algorithm, known.collective, topology_, known.root);
  if (!built.ok()) return built.status();
  CompileOptions options;
  options.scheduling = scheduling_;
  options.allocation = TbAllocation::StateBasedApart;
  // Messages inside hosts can then no longer pass by reference; a single chunk is a small message.
  options.fuse = summary_.ranks_per_host == 1 || built->chunks == 1;
  Result<Plan> plan = compile(*built, topology_, options, rank_);
  if (!plan.ok()) return plan.status();
  // Ranks hold different parts, so what they compare names the plan; the builders make the same of it everywhere.
  uint32_t digest = 0;
  for (const char c : plan->name) digest = digest * 31 + static_cast<uint8_t>(c);
  known.name = plan->name;
  known.signature = static_cast<uint16_t>(digest) & (kLoadedPlan - 1);
  return SchedulePlan{std::make_shared<const Plan>(std::move(*plan)), /*share_slots=*/true};
}

Result<SchedulePlan> PlanCache::take_schedule(const KnownPlan& known) const {
  const std::shared_ptr<const LoadedSchedule> schedule = adaptation_->schedule(schedule_of(known.tag));
  // Never another one instead: the others run what was selected.
  if (schedule == nullptr) return Status::internal("a schedule that was agreed on is gone");
  const bool is_built_in = !schedule->algorithm.empty();
  if (!is_built_in || known.root == std::max(schedule->root, 0)) {
    return SchedulePlan{std::shared_ptr<const Plan>(schedule, &schedule->plan), /*share_slots=*/is_built_in};
  }
  Result<Algorithm> built = build(schedule->algorithm, schedule->collective, topology_, known.root);
  if (!built.ok()) return built.status();
  CompileOptions options;
  options.scheduling = Scheduling::PerConnection;
  Result<Plan> plan = compile(*built, topology_, options, rank_);
  if (!plan.ok()) return plan.status();
  return SchedulePlan{std::make_shared<const Plan>(std::move(*plan)), /*share_slots=*/true};
}

// What a slot holds; or a whole chunk, where no message of the request goes through a slot, because every rank reads
// its peers' memory directly.
size_t PlanCache::piece_bytes(const Program& program, const ResourceRequest& request) {
  if (links_ == nullptr) return kPieceAlone;
  const KnownPlan& plan = known_.at(request.schedule);
  const bool both_ways = plan.collective == Collective::AllGather || plan.collective == Collective::AllToAll;
  const bool chosen = !plan.algorithm.empty();
  const ShapeKey shape = HostBuilder::shape_key_of(request.range);
  const size_t block_bytes = shape.count * size_of(shape.type);
  if (chosen && both_ways && summary_.hosts == 1 && program.only_copies() && links_->fetches(block_bytes)) {
    return std::max(links_->slot_bytes(), block_bytes);
  }
  return links_->slot_bytes();
}

}  // namespace theseus
