// The policy of one schedule: as its definition says, and as it stands in one epoch of the context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "context/log.h"
#include "policy/expression.h"
#include "policy/guard.h"
#include "policy/lanes.h"

namespace theseus::policy {

// An expression, of which a part may be known. Null code: its value is `constant`.
struct FoldedExpression {
  double constant = 0;
  std::shared_ptr<const Code> code;
  CodeKey key;  // of the code
};

class SchedulePolicy {
 public:
  // Copies what it needs.
  SchedulePolicy(const Schedule& schedule, const std::vector<Attribute>& attributes);

  // Looks up again what failed for want of an attribute. True: it is well now.
  bool rebind(const std::vector<Attribute>& attributes);
  // Makes the part below anew. `fixed`: by attribute id, those that do not move in this epoch.
  void fold(AttributeValues& values, const std::vector<bool>& fixed);
  // Whether it reads an attribute of `among`, by id.
  bool reads(const std::vector<bool>& among) const;

  // As evaluated in full, for explanations: the schedule's score, or why it is not usable.
  Result<double> evaluate(const PolicyRequest& request, AttributeValues& values) const;

  uint32_t id() const { return id_; }
  const std::string& name() const { return name_; }
  Collective collective() const { return collective_; }
  int32_t root() const { return root_; }

  // In this epoch
  bool can_be_used() const { return can_be_used_; }
  bool has_failed() const { return has_failed_; }  // it cannot be used since it fails whatever the request
  const Guards& guards() const { return guards_; }
  const FoldedExpression& usable() const { return usable_; }  // what the guards leave
  const FoldedExpression& score() const { return score_; }

 private:
  struct Part {
    bool is_set = false;
    Expression expression;
  };
  static Status parse(Part& part, const std::string& text);
  bool fold_part(const Part& part, AttributeValues& values, const std::vector<bool>& fixed, FoldedExpression& folded);

  uint32_t id_;
  std::string name_;
  Collective collective_;
  int32_t root_;  // -1: any
  Part usable_part_, score_part_;
  Status broken_;                 // why it cannot be evaluated
  bool lacks_attribute_ = false;  // and more attributes may mend it

  bool can_be_used_ = false;
  bool has_failed_ = false;
  Guards guards_;
  FoldedExpression usable_, score_;
};

}  // namespace theseus::policy
