// Policies for users and tests: what one reads, what one gives.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "bindings/errors.h"
#include "bindings/module.h"
#include "policy/expression.h"
#include "policy/names.h"

namespace py = pybind11;

namespace theseus::bindings {

namespace {

using AttributeMap = std::map<std::string, std::variant<double, std::vector<double>>>;

// Attributes with the ids 0, 1, ... in order of their names.
class GivenValues : public AttributeValues {
 public:
  explicit GivenValues(const AttributeMap& given) {
    for (const auto& [name, value] : given) {
      Attribute attribute;
      attribute.id = static_cast<uint32_t>(attributes.size());
      attribute.definition.name = name;
      if (const double* number = std::get_if<double>(&value)) {
        attribute.values = {*number};
      } else {
        attribute.values = std::get<std::vector<double>>(value);
      }
      if (attribute.values.empty() || attribute.values.size() > kLongestArray) {
        throw StatusError(Status::argument("evaluate_policy: attribute '" + name + "' has " +
                                           std::to_string(attribute.values.size()) + " elements; 1 to " +
                                           std::to_string(kLongestArray) + " are allowed"));
      }
      attribute.definition.length = static_cast<uint32_t>(attribute.values.size());
      attributes.push_back(std::move(attribute));
    }
  }
  std::span<const double> values(uint32_t attribute) override { return attributes[attribute].values; }

  std::vector<Attribute> attributes;
};

// collective, dtype and op: by the names that policies use.
int named(const std::string& field, const py::handle& value, policy::Kind kind) {
  const auto text = value.cast<std::string>();
  const auto word = policy::find_word(text);
  if (!word || word->role != policy::Word::Role::Constant || word->kind != kind) {
    throw StatusError(Status::argument("evaluate_policy: '" + text + "' is no value of " + field + "; there are " +
                                       policy::names_of(kind)));
  }
  return static_cast<int>(word->value);
}

PolicyRequest request_of(const py::dict& given) {
  PolicyRequest request;
  for (const auto& [key, value] : given) {
    const auto field = key.cast<std::string>();
    if (field == "collective") {
      request.collective = static_cast<Collective>(named(field, value, policy::Kind::Collective));
    } else if (field == "dtype") {
      request.type = static_cast<DataType>(named(field, value, policy::Kind::DType));
    } else if (field == "op") {
      request.op = static_cast<RedOp>(named(field, value, policy::Kind::Op));
    } else if (field == "bytes") {
      request.bytes = value.cast<uint64_t>();
    } else if (field == "count") {
      request.count = value.cast<uint64_t>();
    } else if (field == "root") {
      request.root = value.cast<int32_t>();
    } else if (field == "ranks") {
      request.ranks = value.cast<int32_t>();
    } else if (field == "hosts") {
      request.hosts = value.cast<int32_t>();
    } else if (field == "rails") {
      request.rails = value.cast<int32_t>();
    } else {
      throw StatusError(Status::argument("evaluate_policy: a request has no field '" + field + "'"));
    }
  }
  return request;
}

std::vector<std::string> check_policy(const std::string& text) { return take(Expression::parse(text)).attributes(); }

double evaluate_policy(const std::string& text, const py::dict& request, const AttributeMap& attributes) {
  Expression expression = take(Expression::parse(text));
  GivenValues values(attributes);
  check(expression.bind(values.attributes));
  return take(expression.evaluate(request_of(request), values));
}

}  // namespace

void bind_policy(py::module_& module) {
  module.def("check_policy", &check_policy, py::arg("text"));
  module.def("evaluate_policy", &evaluate_policy, py::arg("text"), py::arg("request"), py::arg("attributes"));
}

}  // namespace theseus::bindings
