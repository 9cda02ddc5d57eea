#include "compiler/kernel_text.h"

#include <span>
#include <string_view>

#include "base/embedded.h"
#include "compiler/flatten.h"

namespace theseus {

std::span<const EmbeddedText> embedded_device();

namespace {

// Enough warps to keep a multiprocessor's share of the memory busy, as ResCCL has it; registers allow no more.
constexpr uint32_t kThreads = 512;

const char* const kTypeNames[kDataTypes] = {"Int8",    "Uint8",   "Int32",   "Uint32",   "Int64",      "Uint64",
                                            "Float16", "Float32", "Float64", "Bfloat16", "Float8e4m3", "Float8e5m2"};
const char* const kReductionNames[] = {"Sum", "Prod", "Max", "Min"};
const char* const kIntegerNames[] = {"signed char", "unsigned char", "int",
                                     "unsigned",    "long long",     "unsigned long long"};

KernelText text_with(const char* kernel, std::string name, std::string text) {
  KernelText result;
  result.kernel = kernel;
  result.name = std::move(name);
  result.text = std::move(text);
  for (const EmbeddedText& header : embedded_device()) result.headers.emplace_back(header.name, header.text);
  result.threads = kThreads;
  return result;
}

// The arguments of Primitives and interpret.
std::string arguments(const PlanKernel& kernel) {
  return std::string("Numbers<Type::") + kTypeNames[static_cast<int>(kernel.type)] +
         ", Reduction::" + kReductionNames[static_cast<int>(kernel.op)] +
         ">, Protocol::" + (kernel.protocol == device::Protocol::LL ? "LL" : "Simple") + ", " +
         (kernel.scales ? "true" : "false");
}

std::string text_of(const device::Location& place) {
  switch (place.space) {
    case device::Space::Input: return "input(" + std::to_string(place.block) + ", " + std::to_string(place.piece) + ")";
    case device::Space::Output:
      return "output(" + std::to_string(place.block) + ", " + std::to_string(place.piece) + ")";
    case device::Space::Scratch: return "scratch(" + std::to_string(place.piece) + ")";
    default: return "kNowhere";
  }
}

// A call of the primitive that does what `step` says, without the place that it has in its loop. Folds name their
// operands in calls of their own before it.
std::string call_of(const device::Step& step) {
  const std::string recv = std::to_string(step.recv) + ", ", send = std::to_string(step.send) + ", ";
  const std::string src = text_of(step.src) + ", ", dst = text_of(step.dst) + ", ";
  switch (step.op) {
    case device::Op::Nop: return "nothing(";
    case device::Op::Send: return "send(" + send + src;
    case device::Op::Recv: return "recv(" + recv + dst;
    case device::Op::RecvCopySend: return "recv_copy_send(" + recv + send + dst;
    case device::Op::RecvReduceCopy: return "recv_reduce_copy(" + recv + src + dst;
    case device::Op::RecvReduceSend: return "recv_reduce_send(" + recv + send + src;
    case device::Op::RecvReduceCopySend: return "recv_reduce_copy_send(" + recv + send + src + dst;
    case device::Op::Copy: return "copy(" + src + dst;
    case device::Op::Reduce: return "reduce(" + src + dst;
    case device::Op::Fold: return "fold(" + dst;
  }
  return "";
}

class PlanWriter {
 public:
  PlanWriter(const Plan& plan, const RankPlan& part, const PlanKernel& kernel)
      : plan_(plan), part_(part), kernel_(kernel), flat_(flatten(plan, part)) {}

  std::string run() {
    line(0, "// " + comment() + ", rank " + std::to_string(part_.rank) + " of " + std::to_string(plan_.ranks) + ".");
    line(0, "#include \"device/primitives.cuh\"");
    line(0, "using namespace theseus::device;");
    line(0, "THESEUS_KERNEL(theseus_plan, Request, request) {");
    line(1, "THESEUS_SHARED(Frame, frame);");
    line(1, "Primitives<" + arguments(kernel_) + "> tb(request, frame);");
    line(1, "tb.enter();");
    line(1, "switch (Tb::index()) {");
    for (size_t tb = 0; tb < flat_.blocks.size(); ++tb) write_block(tb);
    line(1, "}");
    line(1, "tb.leave();");
    line(0, "}");
    return std::move(text_);
  }

 private:
  void line(int depth, const std::string& text) {
    text_.append(static_cast<size_t>(depth) * 2, ' ');
    text_ += text;
    text_ += '\n';
  }

  // The plan's name is anybody's text: no character of it may end the comment, or continue its line.
  std::string comment() const {
    std::string name = std::string(name_of(plan_.collective)) + " by ";
    for (const char c : plan_.name) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         std::string_view(" _-.,:()=").find(c) != std::string_view::npos;
      name += plain ? c : '_';
    }
    return name;
  }

  void write_block(size_t tb) {
    line(2, "case " + std::to_string(tb) + ":");
    uint32_t before = 0;
    for (uint32_t l = flat_.blocks[tb].first; l < flat_.blocks[tb].end; ++l) {
      const device::Loop& loop = flat_.loops[l];
      const uint32_t width = loop.end - loop.first;
      line(3, "for (tb.begin_loop(" + std::to_string(before) + ", " + std::to_string(width) +
                  "); tb.in_loop(); tb.next()) {");
      for (uint32_t place = 1; place <= width; ++place)
        write_step(flat_.steps[loop.first + place - 1], place, place == width);
      line(3, "}");
      before += width;
    }
    line(3, "break;");
  }

  void write_step(const device::Step& step, uint32_t place, bool last) {
    for (uint32_t w = 0; w < step.waits; ++w) {
      const device::Wait& wait = flat_.waits[step.first_wait + w];
      line(4, "tb.wait(" + std::to_string(wait.block) + ", " + std::to_string(wait.distance) + ", " +
                  std::to_string(wait.before) + ", " + std::to_string(wait.width) + ", " + std::to_string(wait.place) +
                  ");");
    }
    for (uint32_t i = 0; i < step.operands; ++i) {
      const int32_t operand = flat_.operands[step.first_operand + i];
      line(4, operand == kLocalOperand ? "tb.operand(kLocalOperand, " + text_of(step.src) + ");"
                                       : "tb.operand(" + std::to_string(operand) + ", kNowhere);");
    }
    const std::string call = "tb." + call_of(step) + std::to_string(step.silent != 0 ? 0 : place) + ")";
    line(4, last ? "if (!" + call + ") break;" : call + ";");
  }

  const Plan& plan_;
  const RankPlan& part_;
  const PlanKernel& kernel_;
  FlatProgram flat_;
  std::string text_;
};

}  // namespace

KernelText interpreter_text(DataType type, RedOp op, device::Protocol protocol) {
  const PlanKernel kernel{type, op, protocol, true};
  return text_with("theseus_interpret", std::string("interpret_") + name_of(type) + "_" + name_of(op) + ".cu",
                   "#include \"device/interpret.cuh\"\n"
                   "using namespace theseus::device;\n"
                   "THESEUS_KERNEL(theseus_interpret, Request, request) {\n"
                   "  THESEUS_SHARED(Frame, frame);\n"
                   "  interpret<" +
                       arguments(kernel) + ">(request, frame);\n}\n");
}

KernelText division_text(DataType type) {
  const std::string name = std::string("divide_") + name_of(type) + ".cu";
  const bool whole = static_cast<int>(type) <= static_cast<int>(DataType::Uint64);
  const std::string body =
      whole ? std::string("  divide<") + kIntegerNames[static_cast<int>(type)] + ">(division);\n" : "";
  return text_with("theseus_divide", name,
                   "#include \"device/divide.cuh\"\n"
                   "using namespace theseus::device;\n"
                   "THESEUS_KERNEL(theseus_divide, Division, division) {\n" +
                       body + "}\n");
}

KernelText transfer_text() {
  return text_with("theseus_transfer", "transfer.cu",
                   "#include \"device/transfer.cuh\"\n"
                   "using namespace theseus::device;\n"
                   "THESEUS_KERNEL(theseus_transfer, TransferRequest, request) {\n"
                   "  THESEUS_SHARED(TransferJob, job);\n"
                   "  transfer(request, job);\n}\n");
}

KernelText plan_text(const Plan& plan, const RankPlan& part, const PlanKernel& kernel) {
  return text_with("theseus_plan", std::string("plan_") + name_of(kernel.type) + "_" + name_of(kernel.op) + ".cu",
                   PlanWriter(plan, part, kernel).run());
}

size_t instructions_of(const RankPlan& part) {
  size_t count = 0;
  for (const ThreadBlock& block : part.thread_blocks) count += block.instructions.size();
  return count;
}

}  // namespace theseus
