#include "policy/expression.h"

#include <algorithm>
#include <utility>

#include "policy/bytecode.h"
#include "policy/lexer.h"
#include "policy/parser.h"

namespace theseus {

namespace {

bool reads(const policy::Code& code) {
  return std::any_of(code.instructions.begin(), code.instructions.end(), [](const policy::Instruction& each) {
    return each.op == policy::Op::Attribute || each.op == policy::Op::ArrayAttribute;
  });
}

}  // namespace

uint32_t length_of(const Attribute& attribute) {
  if (!attribute.values.empty()) return static_cast<uint32_t>(attribute.values.size());
  return std::max<uint32_t>(attribute.definition.length, 1);
}

Result<Expression> Expression::parse(std::string_view text) {
  auto parsed = policy::parse(text);
  THESEUS_TRY(parsed.status());
  Expression expression;
  expression.attributes_ = std::move(parsed->names);
  if (expression.attributes_.empty()) {
    THESEUS_TRY(policy::assign_types(parsed->code, {}, {}));
    expression.code_ = std::make_shared<const policy::Code>(std::move(parsed->code));
    expression.parsed_ = expression.code_;
  } else {
    expression.parsed_ = std::make_shared<const policy::Code>(std::move(parsed->code));
  }
  return expression;
}

Status Expression::bind(const std::vector<Attribute>& attributes) {
  if (attributes_.empty()) return {};
  std::vector<uint32_t> ids, lengths;
  for (const std::string& name : attributes_) {
    const auto found = std::find_if(attributes.begin(), attributes.end(),
                                    [&name](const Attribute& each) { return each.definition.name == name; });
    if (found == attributes.end()) {
      return Status::argument("policy: there is no attribute '" + name +
                              "', and a request has no such field; define it first");
    }
    ids.push_back(found->id);
    lengths.push_back(length_of(*found));
  }
  policy::Code code = *parsed_;
  THESEUS_TRY(policy::assign_types(code, lengths, ids));
  code_ = std::make_shared<const policy::Code>(std::move(code));
  ids_ = std::move(ids);
  return {};
}

Result<double> Expression::evaluate(const PolicyRequest& request, AttributeValues& values) const {
  if (code_ == nullptr) return Status::internal("policy: evaluated before its attributes were looked up");
  const policy::Outcome outcome = policy::run(*code_, policy::fields_of(request), values);
  if (outcome.fault == policy::Fault::None) return outcome.value;
  return policy::fault_at(outcome.column, policy::describe(outcome.fault));
}

Expression Expression::folded(AttributeValues& values, const std::vector<bool>& fixed) const {
  Expression expression = *this;
  if (code_ == nullptr) return expression;
  policy::Givens givens;
  givens.values = &values;
  givens.fixed = &fixed;
  expression.code_ = std::make_shared<const policy::Code>(policy::fold(*code_, givens));
  return expression;
}

bool Expression::reads_attributes() const { return code_ == nullptr ? !attributes_.empty() : reads(*code_); }

}  // namespace theseus
