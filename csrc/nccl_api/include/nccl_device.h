/* SPDX-License-Identifier: Apache-2.0
 *
 * The host side of NCCL's device API: what a program may call, and so what the library exports. The device side (code
 * that NCCL compiles into the caller's kernels) has no counterpart here: ncclCommQueryProperties says deviceApiSupport
 * = false, and the functions that would prepare for it return ncclInvalidUsage. Teams and properties work.
 */
#ifndef THESEUS_NCCL_DEVICE_H_
#define THESEUS_NCCL_DEVICE_H_

#include <stdbool.h>

#include "nccl.h"

#ifdef __CUDACC__
#error "Theseus has no device API for kernels: compile against NVIDIA's nccl_device.h, and run on NVIDIA's NCCL"
#endif

/* Ranks of the world at a regular distance: member i is rank + (i - team.rank) * team.stride of the caller's world. */
typedef struct ncclTeam {
  int nRanks;
  int rank;
  int stride;
} ncclTeam_t;

typedef struct ncclMultimemHandle {
  void* mcBasePtr;
} ncclMultimemHandle_t;

typedef uint32_t ncclCftLeId;
typedef ncclCftLeId ncclCftLeId_t;

typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

typedef enum {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3
} ncclGinConnectionType_t;

typedef enum {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5,
  NCCL_GIN_MAX_TYPES = 6
} ncclGinType_t;

typedef enum { NCCL_CFT_TEAM_FLAT = 0, NCCL_CFT_TEAM_HIER_MULTIMEM = 1, NCCL_CFT_TEAM_HIER_LSA = 2 } ncclCftTeamMode_t;

typedef struct ncclCommProperties {
  size_t size;          /* set by the initializer */
  unsigned int magic;   /* set by the initializer */
  unsigned int version; /* set by the initializer */
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;
  uint64_t commHash;
  int ginMinStride;
  ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER {sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE}

#ifdef __cplusplus
extern "C" {
#endif

THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommQueryProperties, (ncclComm_t comm, ncclCommProperties_t* props));

/* Teams. On host memory no rank can load and store into another's window, so the LSA and CFT teams are the caller
 * alone, and the rail team is the world. */
THESEUS_NCCL_DECLARE(ncclTeam_t, ncclTeamWorld, (ncclComm_t comm));
THESEUS_NCCL_DECLARE(ncclTeam_t, ncclTeamLsa, (ncclComm_t comm));
THESEUS_NCCL_DECLARE(ncclTeam_t, ncclTeamRail, (ncclComm_t comm));
#ifdef __cplusplus
THESEUS_NCCL_DECLARE(ncclTeam_t, ncclTeamCft, (ncclComm_t comm, ncclCftTeamMode_t mode = NCCL_CFT_TEAM_FLAT));
#else
THESEUS_NCCL_DECLARE(ncclTeam_t, ncclTeamCft, (ncclComm_t comm, ncclCftTeamMode_t mode));
#endif
THESEUS_NCCL_DECLARE(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t comm));
THESEUS_NCCL_DECLARE(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank));
THESEUS_NCCL_DECLARE(int, ncclTeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank));

/* What follows serves kernels, and returns ncclInvalidUsage here (ncclLLA2ACalcSlots, plain arithmetic, works). */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclDevCommCreate,
                     (ncclComm_t comm, const ncclDevCommRequirements_t* reqs, ncclDevComm_t* outDevComm));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclDevCommDestroy, (ncclComm_t comm, const ncclDevComm_t* devComm));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetLsaMultimemDevicePointer,
                     (ncclWindow_t window, size_t offset, void** outPtr));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetMultimemDevicePointer,
                     (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void** outPtr));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetLsaDevicePointer,
                     (ncclWindow_t window, size_t offset, int lsaRank, void** outPtr));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetPeerDevicePointer,
                     (ncclWindow_t window, size_t offset, int peer, void** outPtr));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetMultimemDeviceLeInfo,
                     (ncclWindow_t window, size_t offset, ncclCftLeId* leId, size_t* leOffset));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetCftDeviceLeInfo,
                     (ncclWindow_t window, size_t offset, int peerCft, ncclTeam_t cftTeam, ncclCftLeId* leId,
                      size_t* leOffset));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetPeerDeviceLeInfo,
                     (ncclWindow_t window, size_t offset, int peerWorld, ncclCftLeId* leId, size_t* leOffset));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclLsaBarrierCreateRequirement,
                     (ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t* outHandle,
                      ncclDevResourceRequirements_t* outReq));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGinBarrierCreateRequirement,
                     (ncclComm_t comm, ncclTeam_t team, int nBarriers, ncclGinBarrierHandle_t* outHandle,
                      ncclDevResourceRequirements_t* outReq));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGinOutboxCreateRequirement,
                     (int nBlocks, int size_log2, ncclGinOutboxHandle_t* outHandle,
                      ncclDevResourceRequirements_t* outReq));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGinInboxA2ACreateRequirement,
                     (ncclTeam_t peers, int nBlocks, int size_log2, ncclGinInboxA2AHandle_t* outHandle,
                      ncclDevResourceRequirements_t* outReq));
THESEUS_NCCL_DECLARE(int, ncclLLA2ACalcSlots, (int maxElts, int maxEltSize));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclLLA2ACreateRequirement,
                     (int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle, ncclDevResourceRequirements_t* outReq));

#ifdef __cplusplus
}
#endif

#endif
