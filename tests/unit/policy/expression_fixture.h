// Values and names for tests of policies.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "policy/expression.h"

namespace theseus {

// Attributes with the ids 0, 1, ...
class TestAttributes : public AttributeValues {
 public:
  void add(const std::string& name, std::vector<double> values) {
    Attribute attribute;
    attribute.id = static_cast<uint32_t>(attributes.size());
    attribute.definition.name = name;
    attribute.definition.length = static_cast<uint32_t>(values.size());
    attribute.values = std::move(values);
    attributes.push_back(std::move(attribute));
  }
  std::span<const double> values(uint32_t id) override {
    ++reads;
    return attributes.at(id).values;
  }

  std::vector<Attribute> attributes;
  int reads = 0;
};

inline PolicyRequest example_request() {
  PolicyRequest request;
  request.collective = Collective::AllReduce;
  request.type = DataType::Float32;
  request.op = RedOp::Sum;
  request.root = 2;
  request.count = 1 << 18;
  request.bytes = 1 << 20;
  request.ranks = 16;
  request.hosts = 4;
  request.rails = 4;
  return request;
}

inline TestAttributes example_attributes() {
  TestAttributes attributes;
  attributes.add("healing", {3});
  attributes.add("nic_health", {1, 0.5, 0.25, 1});
  attributes.add("load", {10, 20, 30, 40});
  attributes.add("pair", {7, -8});
  attributes.add("x", {2.5});
  attributes.add("my-attr:a.b", {42});
  attributes.add("sum", {11});
  return attributes;
}

// The bits of the result, or why there is none.
inline std::string show(const Result<double>& result) {
  if (!result.ok()) return result.status().message();
  return std::to_string(*result) + " " + std::to_string(std::bit_cast<uint64_t>(*result));
}

}  // namespace theseus
