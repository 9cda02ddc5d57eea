#include "policy/schedule_policy.h"

#include <algorithm>
#include <utility>

#include "schedule/places.h"

namespace theseus::policy {

namespace {

// Whether the code reads nothing that could differ from one evaluation to the next.
bool is_closed(const Code& code) {
  return std::none_of(code.instructions.begin(), code.instructions.end(), [](const Instruction& each) {
    return each.op == Op::Field || each.op == Op::Attribute || each.op == Op::ArrayAttribute;
  });
}

}  // namespace

SchedulePolicy::SchedulePolicy(const Schedule& schedule, const std::vector<Attribute>& attributes)
    : id_(schedule.id),
      name_(schedule.definition.name),
      collective_(schedule.definition.collective),
      root_(is_rooted(schedule.definition.collective) ? schedule.definition.root : -1) {
  broken_ = parse(usable_part_, schedule.definition.usable);
  if (broken_.ok()) broken_ = parse(score_part_, schedule.definition.score);
  lacks_attribute_ = broken_.ok();
  rebind(attributes);
}

Status SchedulePolicy::parse(Part& part, const std::string& text) {
  if (text.empty()) return {};
  auto parsed = Expression::parse(text);
  THESEUS_TRY(parsed.status());
  part = {true, std::move(*parsed)};
  return {};
}

bool SchedulePolicy::rebind(const std::vector<Attribute>& attributes) {
  if (!lacks_attribute_) return false;
  broken_ = {};
  for (Part* part : {&usable_part_, &score_part_}) {
    if (part->is_set && broken_.ok()) broken_ = part->expression.bind(attributes);
  }
  lacks_attribute_ = !broken_.ok();
  return broken_.ok();
}

bool SchedulePolicy::reads(const std::vector<bool>& among) const {
  for (const Part* part : {&usable_part_, &score_part_}) {
    for (const uint32_t id : part->expression.attribute_ids()) {
      if (id < among.size() && among[id]) return true;
    }
  }
  return false;
}

// False: it fails for every request.
bool SchedulePolicy::fold_part(const Part& part, AttributeValues& values, const std::vector<bool>& fixed,
                               FoldedExpression& folded) {
  Givens givens;
  givens.values = &values;
  givens.fixed = &fixed;
  givens.fields = {{Field::Collective, static_cast<double>(collective_)}};
  auto code = std::make_shared<Code>(policy::fold(*part.expression.code(), givens));
  if (code->is_constant()) {
    folded.constant = code->instructions[0].constant();
    return true;
  }
  if (is_closed(*code)) return false;
  folded.code = std::move(code);
  return true;
}

void SchedulePolicy::fold(AttributeValues& values, const std::vector<bool>& fixed) {
  guards_ = {};
  usable_ = {1, nullptr, {}};
  score_ = {};
  can_be_used_ = false;
  has_failed_ = !broken_.ok();
  if (has_failed_) return;
  has_failed_ = (usable_part_.is_set && !fold_part(usable_part_, values, fixed, usable_)) ||
                (score_part_.is_set && !fold_part(score_part_, values, fixed, score_));
  if (has_failed_) return;
  if (usable_.code != nullptr) {
    Code rest = *usable_.code;
    guards_ = take_guards(rest);
    usable_.constant = rest.is_constant() ? rest.instructions[0].constant() : 0;
    usable_.code = rest.is_constant() ? nullptr : std::make_shared<const Code>(std::move(rest));
  }
  can_be_used_ = !guards_.is_never && (usable_.code != nullptr || usable_.constant != 0);
  if (usable_.code != nullptr) usable_.key = key_of(*usable_.code);
  if (score_.code != nullptr) score_.key = key_of(*score_.code);
}

Result<double> SchedulePolicy::evaluate(const PolicyRequest& request, AttributeValues& values) const {
  THESEUS_TRY(broken_);
  if (root_ >= 0 && root_ != request.root) {
    return Status::argument("it is made for root " + std::to_string(root_));
  }
  if (usable_part_.is_set) {
    const auto usable = usable_part_.expression.evaluate(request, values);
    if (!usable.ok()) return Status::argument("usable: " + usable.status().message());
    if (*usable == 0) return Status::argument("usable is 0");
  }
  if (!score_part_.is_set) return 0.0;
  auto score = score_part_.expression.evaluate(request, values);
  if (!score.ok()) return Status::argument("score: " + score.status().message());
  return score;
}

}  // namespace theseus::policy
