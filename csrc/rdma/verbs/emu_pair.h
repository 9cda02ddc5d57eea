// What the emulator keeps of a queue pair. Private to drivers/verbs.
#pragma once

#include <cstring>

#include "rdma/verbs/emu.h"

namespace theseus {

inline constexpr uint32_t kPsnMask = 0xffffff;
// a - b on the circle of sequence numbers, as a signed distance.
inline int32_t psn_distance(uint32_t a, uint32_t b) { return static_cast<int32_t>((a - b) << 8) >> 8; }

enum : int { kRequest, kAck, kNakSequence, kNakInvalid, kNakNotReady, kReadResponse };

struct EmulatedVerbs::Packet {
  uint32_t source = 0;
  int answer = kRequest;
  uint32_t psn = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool first = true, last = true;
  std::vector<char> data{};  // of this packet; of the whole message in the response to a READ
  uint64_t address = 0;      // where the data of this packet goes, or a READ reads
  uint32_t length = 0;       // of the whole message
  uint32_t packets = 1;      // of a READ: the sequence numbers that its responses take
  uint32_t immediate = 0;
};

struct EmulatedVerbs::Message {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool signalled = false;
  uint32_t slots = 0, first = 0, packets = 1, length = 0, immediate = 0;
  uint64_t address = 0;
  std::vector<char> data;
  std::vector<ibv_sge> pieces;  // where a READ puts what it gets
  bool answered = false;        // of a READ

  static Message of(const ibv_send_wr& request) {
    Message made;
    made.id = request.wr_id;
    made.opcode = request.opcode;
    made.immediate = request.imm_data;
    made.address = request.wr.rdma.remote_addr;
    made.pieces.assign(request.sg_list, request.sg_list + request.num_sge);
    for (const ibv_sge& piece : made.pieces) {
      made.length += piece.length;
      const auto* const start = reinterpret_cast<const char*>(piece.addr);
      if (made.opcode != IBV_WR_RDMA_READ) made.data.insert(made.data.end(), start, start + piece.length);
    }
    return made;
  }
};

struct EmulatedVerbs::Receive {
  uint64_t id = 0;
  std::vector<ibv_sge> pieces;

  static Receive of(const ibv_recv_wr& request) {
    return {request.wr_id, {request.sg_list, request.sg_list + request.num_sge}};
  }
};

struct EmulatedVerbs::Srq {
  ibv_srq srq{};
  std::deque<Receive> posted;
};

struct EmulatedVerbs::Queue {
  ibv_cq cq{};
  std::deque<std::pair<ibv_wc, uint32_t>> entries;  // with the slots of the send queue that polling them gives back
};

struct EmulatedVerbs::Pair {
  ibv_qp qp{};
  ibv_qp_attr attributes{};
  ibv_qp_state state = IBV_QPS_RESET;
  uint32_t sends = 0, receives = 0, occupied = 0, unsignalled = 0;
  bool all_signalled = false, dead = false;
  uint8_t sent_class = 0;
  // The requester.
  std::deque<Message> outstanding;
  uint32_t next_psn = 0, acknowledged = 0;
  int waited = 0, tries = 0, not_ready = 0;
  // The responder.
  std::deque<Receive> posted;
  uint32_t expected_psn = 0;
  bool complained = false;    // of a packet out of order, or of no receive
  bool inside = false;        // a message whose last packet has not come
  std::vector<char> partial;  // of a SEND
  std::deque<Packet> wire;    // under way to here

  uint32_t mtu() const { return 128u << attributes.path_mtu; }
};

// Spreads `data` over the pieces; false: it does not fit.
inline bool scatter(const std::vector<char>& data, const std::vector<ibv_sge>& pieces) {
  size_t done = 0;
  for (const ibv_sge& piece : pieces) {
    const size_t part = std::min<size_t>(piece.length, data.size() - done);
    if (part > 0) std::memcpy(reinterpret_cast<void*>(piece.addr), data.data() + done, part);
    done += part;
  }
  return done == data.size();
}

}  // namespace theseus
