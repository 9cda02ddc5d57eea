// The verifier; what it refuses is resccl.errors.VerificationError.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/resccl/errors.h"
#include "bindings/resccl/module.h"
#include "compiler/verify.h"

namespace py = pybind11;

namespace theseus::resccl {
namespace {

py::tuple tuple_of(const Occurrence& o) { return py::make_tuple(o.rank, o.tb, o.step, o.micro_batch); }

py::object tuple_of(Place place) {
  static constexpr const char* names[] = {"none", "input", "output", "scratch"};
  if (place.buffer == Buffer::None) return py::none();
  return py::make_tuple(names[static_cast<size_t>(place.buffer)], place.index);
}

py::object none_or(int number) { return number < 0 ? py::object(py::none()) : py::object(py::int_(number)); }

[[noreturn]] void throw_refusal(const Refusal& refusal) {
  py::list interleaving;
  for (const Occurrence& each : refusal.interleaving) interleaving.append(tuple_of(each));
  py::dict fields;
  fields["kind"] = name_of(refusal.kind);
  fields["rank"] = none_or(refusal.rank);
  fields["tb"] = none_or(refusal.tb);
  fields["step"] = none_or(refusal.step);
  fields["chunk"] = none_or(refusal.chunk);
  fields["place"] = tuple_of(refusal.place);
  fields["interleaving"] = interleaving;
  fields["slots"] = refusal.slots;
  fields["micro_batches"] = refusal.micro_batches;
  fields["in_place"] = refusal.in_place;
  fields["reference"] = refusal.reference ? py::object(tuple_of(*refusal.reference)) : py::object(py::none());
  const py::object type = py::module_::import("resccl.errors").attr("VerificationError");
  const py::object error = type(refusal.text, **fields);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

void verify_plan(const py::bytes& bytes, const VerifyOptions& options) {
  const auto text = static_cast<std::string>(bytes);
  Status parsed;
  std::optional<Refusal> refusal;
  {
    const py::gil_scoped_release released;
    const Result<Plan> plan = parse_plan(text);
    parsed = plan.status();
    if (plan.ok()) refusal = find_fault(*plan, options);
  }
  check(parsed);
  if (!refusal) return;
  if (refusal->kind == FaultKind::TooLarge) throw StatusError(Status::usage(refusal->text));
  if (refusal->kind == FaultKind::Options) throw StatusError(Status::argument(refusal->text));
  throw_refusal(*refusal);
}

}  // namespace

void bind_verifier(py::module_& module) {
  const VerifyOptions otherwise;
  module.def(
      "verify",
      [](const py::bytes& plan, int slots, bool in_place, bool out_of_place, bool equal_bits, bool scaled_input,
         bool any_count, int max_thread_blocks, int max_connections, uint64_t work_limit) {
        VerifyOptions options;
        options.slots = slots;
        options.in_place = in_place;
        options.out_of_place = out_of_place;
        options.equal_bits = equal_bits;
        options.scaled_input = scaled_input;
        options.any_count = any_count;
        options.max_thread_blocks = max_thread_blocks;
        options.max_connections = max_connections;
        options.work_limit = work_limit;
        verify_plan(plan, options);
      },
      py::arg("plan"), py::kw_only(), py::arg("slots") = otherwise.slots, py::arg("in_place") = otherwise.in_place,
      py::arg("out_of_place") = otherwise.out_of_place, py::arg("equal_bits") = otherwise.equal_bits,
      py::arg("scaled_input") = otherwise.scaled_input, py::arg("any_count") = otherwise.any_count,
      py::arg("max_thread_blocks") = otherwise.max_thread_blocks,
      py::arg("max_connections") = otherwise.max_connections, py::arg("work_limit") = otherwise.work_limit);
}

}  // namespace theseus::resccl
