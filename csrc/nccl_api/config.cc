#include "nccl_api/config.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/env.h"

namespace theseus::nccl_api {
namespace {

constexpr int kUnset = NCCL_CONFIG_UNDEF_INT;

// The members of ncclConfig_t that hold an int, since when, and what they may hold.
struct IntMember {
  const char* name;
  int ncclConfig_t::* member;
  unsigned since;
  int low;
  int high;
};

constexpr IntMember kIntMembers[] = {
    {"blocking", &ncclConfig_t::blocking, NCCL_VERSION(2, 14, 0), 0, 1},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, NCCL_VERSION(2, 17, 0), 0, INT_MAX},
    {"minCTAs", &ncclConfig_t::minCTAs, NCCL_VERSION(2, 17, 0), 1, INT_MAX},
    {"maxCTAs", &ncclConfig_t::maxCTAs, NCCL_VERSION(2, 17, 0), 1, INT_MAX},
    {"splitShare", &ncclConfig_t::splitShare, NCCL_VERSION(2, 18, 0), 0, 1},
    {"trafficClass", &ncclConfig_t::trafficClass, NCCL_VERSION(2, 26, 0), 0, INT_MAX},
    {"collnetEnable", &ncclConfig_t::collnetEnable, NCCL_VERSION(2, 27, 0), 0, 1},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, NCCL_VERSION(2, 27, 0), 0,
     NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO},
    {"shrinkShare", &ncclConfig_t::shrinkShare, NCCL_VERSION(2, 27, 0), 0, 1},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, NCCL_VERSION(2, 27, 0), 1, INT_MAX},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, NCCL_VERSION(2, 28, 0), 1, INT_MAX},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, NCCL_VERSION(2, 28, 0), 0, 1},
};

constexpr ncclConfig_t kDefaultConfig = NCCL_CONFIG_INITIALIZER;
constexpr ncclCollConfig_t kDefaultCollConfig = NCCL_COLLCONFIG_INITIALIZER;

// The three members that every option struct begins with.
struct Head {
  size_t size;
  unsigned magic;
  unsigned version;
};

Status wrong(const char* function, const std::string& why) {
  return Status::argument(std::string(function) + ": " + why);
}

// Copies what the caller's version of the struct has over `out`, which holds the defaults.
template <class Options>
Status copy_options(const char* function, const Options* given, const char* initializer, Options& out) {
  Head head;
  std::memcpy(&head, given, sizeof(head));
  if (head.magic != NCCL_API_MAGIC) {
    return wrong(function, std::string("config was not initialised: start from ") + initializer);
  }
  if (head.size < sizeof(Head)) {
    return wrong(function, "config.size is " + std::to_string(head.size) + ", below the " +
                               std::to_string(sizeof(Head)) + " bytes of its own head: start from " + initializer);
  }
  std::memcpy(static_cast<void*>(&out), given, std::min(head.size, sizeof(Options)));
  return {};
}

Status check_range(const char* function, const char* name, int value, int low, int high) {
  if (value == kUnset || (value >= low && value <= high)) return {};
  const std::string bound = high == INT_MAX ? "at least " + std::to_string(low)
                                            : "from " + std::to_string(low) + " to " + std::to_string(high);
  return wrong(function, std::string("config.") + name + " is " + std::to_string(value) + ", must be " + bound);
}

Status check_ctas(const char* function, int minimum, int maximum) {
  if (minimum == kUnset || maximum == kUnset || minimum <= maximum) return {};
  return wrong(function, "config.minCTAs (" + std::to_string(minimum) + ") is above config.maxCTAs (" +
                             std::to_string(maximum) + ")");
}

}  // namespace

Result<CommConfig> read_config(const char* function, const ncclConfig_t* config) {
  CommConfig result;
  result.blocking = settings::comm_blocking();
  if (config == nullptr) return result;
  ncclConfig_t options = kDefaultConfig;
  THESEUS_TRY(copy_options(function, config, "NCCL_CONFIG_INITIALIZER", options));
  for (const IntMember& member : kIntMembers) {
    // A size alone does not tell: 2.26 put trafficClass where 2.25 had padding.
    if (options.version < member.since) options.*member.member = kUnset;
    THESEUS_TRY(check_range(function, member.name, options.*member.member, member.low, member.high));
  }
  THESEUS_TRY(check_ctas(function, options.minCTAs, options.maxCTAs));
  if (options.blocking != kUnset) result.blocking = options.blocking == 1;
  result.split_share = options.splitShare == 1;
  result.shrink_share = options.shrinkShare == 1;
  if (options.trafficClass != kUnset) result.traffic_class = options.trafficClass;
  if (options.version >= NCCL_VERSION(2, 27, 0) && options.commName != nullptr) result.name = options.commName;
  return result;
}

Status check_coll_config(const char* function, const ncclCollConfig_t* config) {
  if (config == nullptr) return {};
  ncclCollConfig_t options = kDefaultCollConfig;
  THESEUS_TRY(copy_options(function, config, "NCCL_COLLCONFIG_INITIALIZER", options));
  THESEUS_TRY(check_range(function, "minCTAs", options.minCTAs, 1, INT_MAX));
  THESEUS_TRY(check_range(function, "maxCTAs", options.maxCTAs, 1, INT_MAX));
  THESEUS_TRY(check_ctas(function, options.minCTAs, options.maxCTAs));
  THESEUS_TRY(check_range(function, "nvlsCTAs", options.nvlsCTAs, 1, INT_MAX));
  THESEUS_TRY(check_range(function, "cgaClusterSize", options.cgaClusterSize, 0, INT_MAX));
  THESEUS_TRY(check_range(function, "forceAlgSelection", options.forceAlgSelection, 0, 1));
  THESEUS_TRY(
      check_range(function, "CTAPolicy", options.CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO));
  if (options.version >= NCCL_VERSION(2, 32, 0) && options.launchCompletionEvent != nullptr) {
    return wrong(function, "config.launchCompletionEvent must be NULL: on host memory no kernel is launched");
  }
  return {};
}

}  // namespace theseus::nccl_api
