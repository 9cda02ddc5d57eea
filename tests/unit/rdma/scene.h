// Two connected ends over the emulator, and the checks on what an application sees of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rdma/device.h"
#include "rdma/verbs/emu.h"

namespace theseus::rdma {

inline ibv_qp_attr attributes_for(uint32_t peer, uint32_t sq_psn, uint32_t rq_psn, uint8_t traffic_class) {
  ibv_qp_attr made{};
  made.path_mtu = IBV_MTU_256;
  made.dest_qp_num = peer;
  made.sq_psn = sq_psn;
  made.rq_psn = rq_psn;
  made.port_num = 1;
  made.timeout = 14;
  made.retry_cnt = 7;
  made.rnr_retry = 7;
  made.max_rd_atomic = made.max_dest_rd_atomic = 1;
  made.min_rnr_timer = 12;
  made.ah_attr.is_global = 1;
  made.ah_attr.grh.traffic_class = traffic_class;
  return made;
}

constexpr int kToInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kToSend =
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

inline void connect(Device& device, ibv_qp* qp, ibv_qp_attr attributes) {
  for (const auto& [state, mask] :
       {std::pair{IBV_QPS_INIT, kToInit}, {IBV_QPS_RTR, kToReceive}, {IBV_QPS_RTS, kToSend}}) {
    attributes.qp_state = state;
    ASSERT_EQ(device.modify_qp(qp, &attributes, mask), 0);
  }
}

constexpr uint32_t kSends = 12, kReceives = 16, kLargest = 900, kMtu = 256;

// One end: posts messages of known content, and expects those of the other end, in order.
struct End {
  EmulatedVerbs& verbs;
  Device device;
  ibv_cq *send_cq, *recv_cq;
  ibv_srq* srq;
  ibv_qp* qp;
  End* other = nullptr;
  std::string fault;  // the first thing that went wrong

  uint64_t next_send = 1, next_receive = 1, next_message = 1, expected_message = 1;
  uint32_t room = kSends;
  struct Posted {
    uint64_t id;
    bool signalled;
    ibv_wr_opcode opcode;
    std::vector<char>* data;
  };
  std::deque<Posted> posted;
  std::deque<std::pair<uint64_t, std::vector<char>*>> receives;
  std::deque<std::pair<std::vector<char>, bool>> promised;  // by the other end; true: written, not sent
  std::vector<char> window = std::vector<char>(kLargest);   // the other end writes here
  std::vector<char> readable = std::vector<char>(kLargest);
  std::vector<Marked> marked;
  std::vector<std::unique_ptr<std::vector<char>>> kept;  // a broken engine may still write there

  End(EmulatedVerbs& emulator, const Config& config, const Rules& rules, bool shared)
      : verbs(emulator), device(emulator, config, rules) {
    send_cq = verbs.create_cq(64);
    recv_cq = verbs.create_cq(64);
    srq = shared ? verbs.create_srq() : nullptr;
    qp = verbs.create_qp(send_cq, recv_cq, kSends + 1, kReceives, false, srq);
    device.add(qp, kSends, false);
    for (size_t i = 0; i < readable.size(); ++i) readable[i] = static_cast<char>(i * 37 + qp->qp_num);
  }

  void wrong(const std::string& what) {
    if (fault.empty()) fault = what;
  }

  std::vector<char>* buffer_of(size_t size) {
    return kept.emplace_back(std::make_unique<std::vector<char>>(size)).get();
  }

  void post_receive() {
    if (receives.size() >= kReceives) return;
    std::vector<char>* const buffer = buffer_of(kLargest);
    ibv_sge piece{reinterpret_cast<uint64_t>(buffer->data()), kLargest, 0};
    ibv_recv_wr request{next_receive, nullptr, &piece, 1}, *bad = nullptr;
    const int error = srq != nullptr ? verbs.post_srq_recv(srq, &request) : device.post_recv(qp, &request, &bad);
    if (error != 0) return wrong("post_recv: " + std::to_string(error));
    receives.emplace_back(next_receive++, buffer);
  }

  // The last slot is kept for a signalled request, as every application must.
  bool post_send(ibv_wr_opcode opcode, uint32_t length, bool signalled, bool inlined) {
    if (room == 0) return false;
    signalled |= room == 1 || opcode == IBV_WR_RDMA_READ;
    std::vector<char>* const data = buffer_of(length);
    const bool reads = opcode == IBV_WR_RDMA_READ,
               consumes = opcode == IBV_WR_SEND || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    for (char& each : *data) each = static_cast<char>(next_message * 131 + (&each - data->data()) * 7);
    const std::vector<char> content = *data;
    ibv_sge pieces[2] = {{reinterpret_cast<uint64_t>(data->data()), length / 3, 0},
                         {reinterpret_cast<uint64_t>(data->data()) + length / 3, length - length / 3, 0}};
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = next_send;
    request.sg_list = pieces;
    request.num_sge = 2;
    request.opcode = opcode;
    request.imm_data = static_cast<uint32_t>(next_message);
    request.send_flags = (signalled ? IBV_SEND_SIGNALED : 0) | (inlined && !reads ? IBV_SEND_INLINE : 0);
    request.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(reads ? other->readable.data() : other->window.data());
    const int error = device.post_send(qp, &request, &bad);
    if (error != 0) {
      wrong("post_send: " + std::to_string(error));
      return false;
    }
    if (inlined && !reads) std::fill(data->begin(), data->end(), 'x');  // the caller's again
    std::fill(std::begin(pieces), std::end(pieces), ibv_sge{});
    if (consumes) {
      other->promised.emplace_back(content, opcode != IBV_WR_SEND);
      ++next_message;
    }
    posted.push_back({next_send++, signalled, opcode, data});
    --room;
    return true;
  }

  void sent(const ibv_wc& completion) {
    if (completion.status != IBV_WC_SUCCESS) return wrong("send failed: " + std::to_string(completion.status));
    while (!posted.empty()) {
      const Posted done = std::move(posted.front());
      posted.pop_front();
      ++room;
      if (!done.signalled) continue;
      if (done.id != completion.wr_id) {
        wrong("completion of " + std::to_string(completion.wr_id) + " where " + std::to_string(done.id) + " was due");
      }
      if (done.opcode == IBV_WR_RDMA_READ &&
          !std::equal(done.data->begin(), done.data->end(), other->readable.begin())) {
        wrong("a READ got other bytes");
      }
      return;
    }
    wrong("a completion of nothing posted");
  }

  void received(const ibv_wc& completion) {
    if (completion.status != IBV_WC_SUCCESS) return wrong("receive failed: " + std::to_string(completion.status));
    if (receives.empty() || promised.empty()) return wrong("a message of nobody");
    const auto [id, buffer] = std::move(receives.front());
    const auto [content, written] = std::move(promised.front());
    receives.pop_front();
    promised.pop_front();
    if (id != completion.wr_id)
      wrong("receive " + std::to_string(completion.wr_id) + " in place of " + std::to_string(id));
    if (completion.byte_len != content.size()) return wrong("a message of another length");
    if (written) {
      if (completion.imm_data != static_cast<uint32_t>(expected_message)) wrong("another immediate value");
    } else if (!std::equal(content.begin(), content.end(), buffer->begin())) {
      wrong("other bytes in message " + std::to_string(expected_message));
    }
    ++expected_message;
  }

  void poll() {
    ibv_wc completions[4];
    for (ibv_cq* cq : {send_cq, recv_cq}) {
      const int got = device.poll_cq(cq, 4, completions);
      for (int i = 0; i < got; ++i) cq == send_cq ? sent(completions[i]) : received(completions[i]);
    }
  }
};

// Two ends and what is under way between them. Time is a number that the test moves.
struct Scene {
  EmulatedVerbs verbs;
  End a, b;
  int64_t now = 1;
  std::deque<Message> messages;

  explicit Scene(const Config& config = {}, const Rules& rules = {}, bool shared = false)
      : a(verbs, config, rules, shared), b(verbs, config, rules, shared) {
    a.other = &b;
    b.other = &a;
    // Both numbers wrap early on.
    connect(a.device, a.qp, attributes_for(b.qp->qp_num, 0xfffff0, 5, 32));
    connect(b.device, b.qp, attributes_for(a.qp->qp_num, 5, 0xfffff0, 32));
  }

  void take(End& end, Outputs& out) {
    messages.insert(messages.end(), out.messages.begin(), out.messages.end());
    end.marked.insert(end.marked.end(), out.marked.begin(), out.marked.end());
    out = {};
  }
  void request(End& end, uint8_t traffic_class) {
    Outputs out;
    end.device.request(end.qp->qp_num, traffic_class, now, out);
    take(end, out);
  }
  void advance(End& end) {
    Outputs out;
    end.device.advance(now, out);
    take(end, out);
  }
  bool pass_message() {
    if (messages.empty()) return false;
    const Message message = messages.front();
    messages.pop_front();
    (message.to == a.qp->qp_num ? a : b).device.receive(message, now);
    return true;
  }
  // Everything moves until nothing does. Both ends receive and poll.
  void settle(int rounds = 3000) {
    for (int i = 0; i < rounds; ++i) {
      now += 1'000'000;
      for (End* end : {&a, &b}) {
        end->post_receive();
        advance(*end);
        for (int packets = 0; packets < 200 && verbs.deliver(end->qp); ++packets) {
        }
        end->poll();
      }
      while (pass_message()) {
      }
      verbs.tick();
    }
  }
  // What must hold once all is quiet.
  std::string verdict() {
    for (End* end : {&a, &b}) {
      if (!end->fault.empty()) return end->fault;
      if (!end->promised.empty()) return std::to_string(end->promised.size()) + " messages never came";
      if (std::any_of(end->posted.begin(), end->posted.end(), [](const auto& each) { return each.signalled; })) {
        return "a completion never came";
      }
      if (end->device.find(end->qp->qp_num)->held() != 0) return "posts are still held";
    }
    return verbs.overflowed() ? "a completion queue overflowed" : "";
  }
};

}  // namespace theseus::rdma
