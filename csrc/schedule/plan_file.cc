// The plan file. All numbers little-endian.
//
//   head     magic "THSPLAN\0" · u32 version · u32 head bytes, from the magic to the end of the table · u64 hash of the
//            head after this field · u8 collective · u8 rendezvous_safe · u8 loop · i32 ranks, root, chunks_per_block ·
//            u32 length + name · u32 sections · table of {i32 rank, u64 offset, u64 bytes, u64 hash of the section}
//   section  i32 scratch_chunks · u32 connections {i32 peer, u8 outgoing, i16 rail, i16 channel} · u32 TBs, each
//            u32 instructions, each as write_instruction() has it
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "schedule/bytes.h"
#include "schedule/check.h"
#include "schedule/plan.h"

namespace theseus {
namespace {

constexpr char kMagic[8] = {'T', 'H', 'S', 'P', 'L', 'A', 'N', '\0'};
constexpr uint32_t kVersion = 2;
constexpr size_t kPrefixBytes = 24;  // magic, version, head bytes, hash
constexpr size_t kTableRowBytes = 28;
constexpr size_t kConnectionBytes = 9;
constexpr size_t kInstructionBytes = 26;  // without fold and dependencies
constexpr size_t kDependencyBytes = 8;

struct Row {
  int32_t rank = 0;
  uint64_t offset = 0, bytes = 0, hash = 0;
};

void write_place(ByteWriter& out, Place place) {
  out.put(static_cast<uint8_t>(place.buffer));
  out.put(place.index);
}

void write_instruction(ByteWriter& out, const Instruction& i) {
  out.put(static_cast<uint8_t>(i.opcode));
  out.put(static_cast<uint8_t>(i.recv_is_left));
  out.put(i.recv);
  out.put(i.send);
  write_place(out, i.src);
  write_place(out, i.dst);
  out.put(i.sub_pipeline);
  out.put(static_cast<uint16_t>(i.fold.size()));
  out.put(static_cast<uint32_t>(i.dependencies.size()));
  for (const int16_t operand : i.fold) out.put(operand);
  for (const Dependency& d : i.dependencies) {
    out.put(d.tb);
    out.put(d.distance);
    out.put(d.step);
  }
}

std::string write_section(const RankPlan& part) {
  ByteWriter out;
  out.put(static_cast<int32_t>(part.scratch_chunks));
  out.put(static_cast<uint32_t>(part.connections.size()));
  for (const Connection& c : part.connections) {
    out.put(c.peer);
    out.put(static_cast<uint8_t>(c.outgoing));
    out.put(c.rail);
    out.put(c.channel);
  }
  out.put(static_cast<uint32_t>(part.thread_blocks.size()));
  for (const ThreadBlock& tb : part.thread_blocks) {
    out.put(static_cast<uint32_t>(tb.instructions.size()));
    for (const Instruction& i : tb.instructions) write_instruction(out, i);
  }
  return out.take();
}

void read_instruction(ByteReader& in, Instruction& i) {
  i.opcode = static_cast<Opcode>(in.get<uint8_t>());
  i.recv_is_left = in.get_flag();
  i.recv = in.get<int16_t>();
  i.send = in.get<int16_t>();
  for (Place* place : {&i.src, &i.dst}) {
    place->buffer = static_cast<Buffer>(in.get<uint8_t>());
    place->index = in.get<int32_t>();
  }
  i.sub_pipeline = in.get<int32_t>();
  const size_t operands = in.limited(in.get<uint16_t>(), sizeof(int16_t));
  const size_t dependencies = in.limited(in.get<uint32_t>(), kDependencyBytes);
  i.fold.resize(operands);
  for (int16_t& operand : i.fold) operand = in.get<int16_t>();
  if (dependencies > in.left() / kDependencyBytes) return in.fail();
  i.dependencies.resize(dependencies);
  for (Dependency& d : i.dependencies) {
    d.tb = in.get<int16_t>();
    d.distance = in.get<int16_t>();
    d.step = in.get<int32_t>();
  }
}

bool read_section(ByteReader& in, RankPlan& part) {
  part.scratch_chunks = in.get<int32_t>();
  part.connections.resize(in.limited(in.get<uint32_t>(), kConnectionBytes));
  for (Connection& c : part.connections) {
    c.peer = in.get<int32_t>();
    c.outgoing = in.get_flag();
    c.rail = in.get<int16_t>();
    c.channel = in.get<int16_t>();
  }
  part.thread_blocks.resize(in.limited(in.get<uint32_t>(), sizeof(uint32_t)));
  for (ThreadBlock& tb : part.thread_blocks) {
    tb.instructions.resize(in.limited(in.get<uint32_t>(), kInstructionBytes));
    for (Instruction& i : tb.instructions) {
      read_instruction(in, i);
      if (!in.ok()) return false;
    }
  }
  return in.ok() && in.left() == 0;
}

Status broken(const std::string& why) {
  return Status::argument("plan file: " + why + "; write it again with this version of Theseus");
}

// The head into `plan`, the table into `rows`.
Status read_head(const std::string& bytes, Plan& plan, std::vector<Row>& rows) {
  if (bytes.size() < kPrefixBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return broken("it does not begin as a plan file does");
  }
  ByteReader prefix(bytes.data() + sizeof kMagic, kPrefixBytes - sizeof kMagic);
  const uint32_t version = prefix.get<uint32_t>();
  const uint32_t head_bytes = prefix.get<uint32_t>();
  const uint64_t hash = prefix.get<uint64_t>();
  if (version != kVersion)
    return broken("version " + std::to_string(version) + ", known is " + std::to_string(kVersion));
  if (head_bytes < kPrefixBytes || head_bytes > bytes.size()) return broken("its head is cut off");
  const char* body = bytes.data() + kPrefixBytes;
  const size_t body_bytes = head_bytes - kPrefixBytes;
  if (hash_bytes(body, body_bytes) != hash) return broken("the checksum of its head is wrong");
  ByteReader in(body, body_bytes);
  plan.collective = static_cast<Collective>(in.get<uint8_t>());
  plan.rendezvous_safe = in.get_flag();
  plan.loop = static_cast<LoopOrder>(in.get<uint8_t>());
  plan.ranks = in.get<int32_t>();
  plan.root = in.get<int32_t>();
  plan.chunks_per_block = in.get<int32_t>();
  plan.name = in.get_string(in.limited(in.get<uint32_t>(), 1));
  rows.resize(in.limited(in.get<uint32_t>(), kTableRowBytes));
  uint64_t expected = head_bytes;
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.rank = in.get<int32_t>();
    row.offset = in.get<uint64_t>();
    row.bytes = in.get<uint64_t>();
    row.hash = in.get<uint64_t>();
    const bool in_order = i == 0 || rows[i - 1].rank < row.rank;
    if (!in_order || row.offset != expected || row.bytes > bytes.size() - expected) {
      return broken("its table of ranks is inconsistent");
    }
    expected += row.bytes;
  }
  if (!in.ok() || in.left() != 0) return broken("its head has the wrong length");
  if (expected != bytes.size()) return broken("it has bytes that belong to no rank");
  return check_head(plan);
}

Status read_part(const std::string& bytes, const Row& row, Plan& plan) {
  const char* begin = bytes.data() + row.offset;
  const auto size = static_cast<size_t>(row.bytes);
  const std::string who = "the section of rank " + std::to_string(row.rank);
  if (hash_bytes(begin, size) != row.hash) return broken("the checksum of " + who + " is wrong");
  ByteReader in(begin, size);
  RankPlan part;
  part.rank = row.rank;
  if (!read_section(in, part)) return broken(who + " has the wrong length");
  THESEUS_TRY(check_part(plan, part));
  plan.rank_plans.push_back(std::move(part));
  return {};
}

}  // namespace

std::string serialize(const Plan& plan) {
  ByteWriter body;
  body.put(static_cast<uint8_t>(plan.collective));
  body.put(static_cast<uint8_t>(plan.rendezvous_safe));
  body.put(static_cast<uint8_t>(plan.loop));
  body.put(static_cast<int32_t>(plan.ranks));
  body.put(static_cast<int32_t>(plan.root));
  body.put(static_cast<int32_t>(plan.chunks_per_block));
  body.put(static_cast<uint32_t>(plan.name.size()));
  body.append(plan.name);
  body.put(static_cast<uint32_t>(plan.rank_plans.size()));
  const size_t head_bytes = kPrefixBytes + body.size() + plan.rank_plans.size() * kTableRowBytes;
  uint64_t offset = head_bytes;
  std::string sections;
  for (const RankPlan& part : plan.rank_plans) {
    const std::string section = write_section(part);
    body.put(static_cast<int32_t>(part.rank));
    body.put(offset);
    body.put(static_cast<uint64_t>(section.size()));
    body.put(hash_bytes(section.data(), section.size()));
    offset += section.size();
    sections += section;
  }
  const std::string head = body.take();
  ByteWriter file;
  file.append(std::string(kMagic, sizeof kMagic));
  file.put(kVersion);
  file.put(static_cast<uint32_t>(head_bytes));
  file.put(hash_bytes(head.data(), head.size()));
  file.append(head);
  file.append(sections);
  return file.take();
}

Result<Plan> parse_plan(const std::string& bytes) {
  Plan plan;
  std::vector<Row> rows;
  THESEUS_TRY(read_head(bytes, plan, rows));
  for (const Row& row : rows) THESEUS_TRY(read_part(bytes, row, plan));
  return plan;
}

Result<Plan> parse_plan_of_rank(const std::string& bytes, int rank) {
  Plan plan;
  std::vector<Row> rows;
  THESEUS_TRY(read_head(bytes, plan, rows));
  for (const Row& row : rows) {
    if (row.rank != rank) continue;
    THESEUS_TRY(read_part(bytes, row, plan));
    return plan;
  }
  return Status::argument("plan '" + plan.name + "' has no part for rank " + std::to_string(rank));
}

uint64_t digest(const Plan& plan) {
  const std::string bytes = serialize(plan);
  return hash_bytes(bytes.data(), bytes.size());
}

}  // namespace theseus
