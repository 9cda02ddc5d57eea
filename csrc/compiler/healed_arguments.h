// What the generator `healed` is told: who owns how much, and how many messages each rail carries between two hosts.
//
// ASCII text of integers, fields separated by ';', lists by ',', "7x3" standing for 7,7,7:
//   hosts=4;rails=4;chunks=256;shares=30,75,75,76;quotas=...
//   hosts    number of hosts, all with the same number of ranks; host h is the h-th of ranks_by_host()
//   rails    rails of every host
//   chunks   AllReduce, Broadcast: pieces that the data is cut into; else pieces of a block (Plan::chunks_per_block)
//   root     Broadcast only: what follows holds for roots on this host; a text may have one such part for each host
//   shares   AllReduce, Broadcast: how many of the chunks each host owns; their sum is `chunks`
//   quotas   for each host i, each other host j, each rail r: messages from i to j over r
//   out, in  instead of quotas: a weight for each host and rail, each at most kMostWeight; the messages from i to j
//            spread over the rails in proportion to out[i][r] * in[j][r], rounded so that the sums of NICs hold
// A message is one chunk in one direction: between hosts i and j, AllReduce has shares[i] + shares[j] each way,
// AllGather and ReduceScatter L * chunks, AllToAll L * L * chunks, with L ranks a host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace theseus {

inline constexpr size_t kLongestHealedArguments = 32768;
inline constexpr int kMostHealedHosts = 256;
inline constexpr int kMostHealedRails = 64;
inline constexpr int kMostHealedChunks = 1 << 16;
inline constexpr int kMostWeight = 4095;
// Hosts * hosts * rails at most: what a table of quotas takes.
inline constexpr int kMostQuotas = 1 << 20;

struct HealedVariant {
  int root_host = -1;
  std::vector<int32_t> shares;  // by host
  std::vector<int32_t> quotas;  // as in the text; empty where there are weights
  std::vector<int32_t> out;     // [host * rails + rail]
  std::vector<int32_t> in;
};

struct HealedArguments {
  int hosts = 0;
  int rails = 0;
  int chunks = 0;
  std::vector<HealedVariant> variants;  // at least one
};

// InvalidArgument names the field at fault.
Result<HealedArguments> parse_healed(std::string_view text);

// Messages between hosts: [i * hosts + j]; what quotas of that pair must sum up to.
std::vector<int64_t> messages_between(const HealedArguments& arguments, const HealedVariant& variant,
                                      Collective collective, int ranks_per_host);

// The quotas of every pair, [(i * hosts + j) * rails + r], checked against `messages`, or worked out from weights with
// integers alone.
Result<std::vector<int32_t>> quotas_of(const HealedArguments& arguments, const HealedVariant& variant,
                                       const std::vector<int64_t>& messages);

}  // namespace theseus
