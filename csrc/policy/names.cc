#include "policy/names.h"

namespace theseus::policy {

namespace {

struct NamedField {
  std::string_view name;
  Field field;
  Kind kind;
};
constexpr NamedField kFieldNames[] = {
    {"collective", Field::Collective, Kind::Collective},
    {"bytes", Field::Bytes, Kind::Number},
    {"count", Field::Count, Kind::Number},
    {"dtype", Field::DType, Kind::DType},
    {"op", Field::Op, Kind::Op},
    {"root", Field::Root, Kind::Number},
    {"ranks", Field::Ranks, Kind::Number},
    {"hosts", Field::Hosts, Kind::Number},
    {"rails", Field::Rails, Kind::Number},
};

struct NamedValue {
  std::string_view name;
  Kind kind;
  int value;
  bool is_alias = false;
};
constexpr int of(Collective value) { return static_cast<int>(value); }
constexpr int of(DataType value) { return static_cast<int>(value); }
constexpr int of(RedOp value) { return static_cast<int>(value); }

// dtypes: the names of this library, of NCCL and of PyTorch.
constexpr NamedValue kValueNames[] = {
    {"allreduce", Kind::Collective, of(Collective::AllReduce)},
    {"allgather", Kind::Collective, of(Collective::AllGather)},
    {"reducescatter", Kind::Collective, of(Collective::ReduceScatter)},
    {"broadcast", Kind::Collective, of(Collective::Broadcast)},
    {"reduce", Kind::Collective, of(Collective::Reduce)},
    {"alltoall", Kind::Collective, of(Collective::AllToAll)},
    {"gather", Kind::Collective, of(Collective::Gather)},
    {"scatter", Kind::Collective, of(Collective::Scatter)},
    {"all_reduce", Kind::Collective, of(Collective::AllReduce), true},
    {"all_gather", Kind::Collective, of(Collective::AllGather), true},
    {"reduce_scatter", Kind::Collective, of(Collective::ReduceScatter), true},
    {"all_to_all", Kind::Collective, of(Collective::AllToAll), true},
    {"int8", Kind::DType, of(DataType::Int8)},
    {"uint8", Kind::DType, of(DataType::Uint8)},
    {"int32", Kind::DType, of(DataType::Int32)},
    {"uint32", Kind::DType, of(DataType::Uint32)},
    {"int64", Kind::DType, of(DataType::Int64)},
    {"uint64", Kind::DType, of(DataType::Uint64)},
    {"float16", Kind::DType, of(DataType::Float16)},
    {"float32", Kind::DType, of(DataType::Float32)},
    {"float64", Kind::DType, of(DataType::Float64)},
    {"bfloat16", Kind::DType, of(DataType::Bfloat16)},
    {"float8e4m3", Kind::DType, of(DataType::Float8e4m3)},
    {"float8e5m2", Kind::DType, of(DataType::Float8e5m2)},
    {"int", Kind::DType, of(DataType::Int32), true},
    {"long", Kind::DType, of(DataType::Int64), true},
    {"half", Kind::DType, of(DataType::Float16), true},
    {"float", Kind::DType, of(DataType::Float32), true},
    {"double", Kind::DType, of(DataType::Float64), true},
    {"float8_e4m3fn", Kind::DType, of(DataType::Float8e4m3), true},
    {"float8_e5m2", Kind::DType, of(DataType::Float8e5m2), true},
    {"sum", Kind::Op, of(RedOp::Sum)},
    {"prod", Kind::Op, of(RedOp::Prod)},
    {"max", Kind::Op, of(RedOp::Max)},
    {"min", Kind::Op, of(RedOp::Min)},
    {"avg", Kind::Op, of(RedOp::Avg)},
    {"premulsum", Kind::Op, of(RedOp::PreMulSum)},
};

}  // namespace

std::optional<Word> find_word(std::string_view name) {
  if (name == "true" || name == "false") {
    return Word{Word::Role::Constant, Field::Bytes, Kind::Number, name == "true" ? 1.0 : 0.0};
  }
  for (const NamedField& each : kFieldNames) {
    if (each.name == name) return Word{Word::Role::Field, each.field, each.kind, 0};
  }
  for (const NamedValue& each : kValueNames) {
    if (each.name == name) {
      return Word{Word::Role::Constant, Field::Bytes, each.kind, static_cast<double>(each.value)};
    }
  }
  return std::nullopt;
}

const char* describe(Kind kind) {
  switch (kind) {
    case Kind::Number: return "a number";
    case Kind::Collective: return "a collective";
    case Kind::DType: return "a dtype";
    case Kind::Op: return "an op";
  }
  return "a value";
}

std::string names_of(Kind kind) {
  std::string names;
  for (const NamedValue& each : kValueNames) {
    if (each.kind != kind || each.is_alias) continue;
    if (!names.empty()) names += ", ";
    names += each.name;
  }
  return names;
}

Fields fields_of(const PolicyRequest& request) {
  Fields fields{};
  const auto set = [&fields](Field field, auto value) {
    fields[static_cast<size_t>(field)] = static_cast<double>(value);
  };
  set(Field::Collective, of(request.collective));
  set(Field::Bytes, request.bytes);
  set(Field::Count, request.count);
  set(Field::DType, of(request.type));
  set(Field::Op, of(request.op));
  set(Field::Root, request.root);
  set(Field::Ranks, request.ranks);
  set(Field::Hosts, request.hosts);
  set(Field::Rails, request.rails);
  return fields;
}

}  // namespace theseus::policy
