/* SPDX-License-Identifier: Apache-2.0
 *
 * The C interface of Theseus. Binary-compatible with NCCL 2.32.3: same names, values and struct layouts, so a program
 * compiled with either header runs with either library.
 *
 * On a machine without a GPU every buffer is host memory and the stream arguments are ignored: a call returns when its
 * result is in place (inside a group: when the outermost ncclGroupEnd returns). The CUDA toolkit is not needed to
 * compile against this header; where it is installed its stream and event types are used.
 *
 * Each ncclX is also there as pncclX. Define your own ncclX to wrap a call (profilers do), and call pncclX inside.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#define THESEUS_HAS_CUDA_RUNTIME_H 1
#endif
#if __has_include(<cuda_fp16.h>)
#define THESEUS_HAS_CUDA_FP16_H 1
#endif
#if __has_include(<cuda_bf16.h>)
#define THESEUS_HAS_CUDA_BF16_H 1
#endif
#endif

#ifdef THESEUS_HAS_CUDA_RUNTIME_H
#include <cuda_runtime.h>
#ifdef THESEUS_HAS_CUDA_FP16_H
#include <cuda_fp16.h>
#endif
#ifdef THESEUS_HAS_CUDA_BF16_H
#include <cuda_bf16.h>
#endif
#else
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""

#define NCCL_VERSION_CODE 23203
/* Up to 2.8 a version was coded with one digit for the minor; two since. */
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles and codes ---------------------------------------------------------------------------------------- */

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
#define NCCL_COMM_NULL NULL

/* Names a communicator that is about to be made; made by one rank, carried to the others by the program. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6, /* a rank died or its network did */
  ncclInProgress = 7,  /* non-blocking communicators: ask ncclCommGetAsyncError again */
  ncclTimeout = 8,
  ncclNumResults = 9
} ncclResult_t;

/* What an option holds while nobody has set it. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

/* The colour of a rank that wants no communicator from ncclCommSplit. */
#define NCCL_SPLIT_NOCOLOR -1

#define NCCL_API_MAGIC 0xcafebeef

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_GIN_ONLY 0x04
#define NCCL_WIN_CFT_COUNTED 0x08
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* stop what the parent is doing first: the choice after a rank died */

#define NCCL_REVOKE_DEFAULT 0x00

#define NCCL_SUSPEND_MEM 0x01

typedef enum {
  ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;

typedef enum {
  ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1 << 0,
  ncclNvlsHostModeDisableSymmetricMultimem = 1 << 1,
  ncclNvlsHostModeDisable = INT_MAX
} ncclNvlsHostMode_t;

/* ---- Options -------------------------------------------------------------------------------------------------- */

/* Options of a communicator. Start from NCCL_CONFIG_INITIALIZER and set members by name. The library reads no more than
 * `size` bytes, and no member newer than `version`, so that older programs keep working. On host memory `blocking`,
 * `splitShare`, `shrinkShare` and `commName` have an effect; the others are accepted. */
typedef struct ncclConfig_v23100 {
  size_t size;          /* set by the initializer */
  unsigned int magic;   /* set by the initializer */
  unsigned int version; /* set by the initializer */
  int blocking;         /* 0: calls return ncclInProgress instead of waiting */
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;
  int nvlsHostMode;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                                       \
  {sizeof(ncclConfig_t),  NCCL_API_MAGIC,        NCCL_VERSION_CODE,                            /* head */             \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* maxCTAs */          \
   NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* netName .. trafficClass */                 \
   NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* commName .. CTAPolicy */                   \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT}

/* One option that a vendor's library understands and others skip. The list ends with NULL and has no duplicate keys. */
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId; /* non-zero, below 2^24 */
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

/* Options of one collective call (the nccl...Config functions); equal on all ranks. Start from
 * NCCL_COLLCONFIG_INITIALIZER. */
typedef struct ncclCollConfig_v23200 {
  size_t size;          /* set by the initializer */
  unsigned int magic;   /* set by the initializer */
  unsigned int version; /* set by the initializer */
  ncclConfigExt_t* ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  uint64_t userProfilerTag;
  cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                            \
  {sizeof(ncclCollConfig_t), NCCL_API_MAGIC,                   \
   NCCL_VERSION_CODE,        NCCL_CONFIG_UNDEF_PTR,            \
   NCCL_CONFIG_UNDEF_INT,    NCCL_CONFIG_UNDEF_INT,            \
   NCCL_CONFIG_UNDEF_INT,    NCCL_CONFIG_UNDEF_INT, /* CTAs */ \
   NCCL_CONFIG_UNDEF_PTR,    1,                                \
   NCCL_CONFIG_UNDEF_INT,    0,                                \
   NCCL_CONFIG_UNDEF_PTR}

typedef struct ncclSimInfo_v22200 {
  size_t size;          /* set by the initializer */
  unsigned int magic;   /* set by the initializer */
  unsigned int version; /* set by the initializer */
  float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_MAGIC 0x74685283
#define NCCL_SIM_INFO_INITIALIZER {sizeof(ncclSimInfo_t), NCCL_SIM_INFO_MAGIC, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT}

typedef enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;

typedef struct ncclEncryptionConfig_v23200 {
  size_t size;          /* set by the initializer */
  unsigned int magic;   /* set by the initializer */
  unsigned int version; /* set by the initializer */
  int mode;
  const char* psk;
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER \
  {sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE, NCCL_CONFIG_UNDEF_PTR}

/* ---- Element types and reductions ----------------------------------------------------------------------------- */

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /* operators made by ncclRedOpCreate... are numbered from here */
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
  ncclScalarDevice = 0,       /* read when the collective runs */
  ncclScalarHostImmediate = 1 /* read before ncclRedOpCreate... returns */
} ncclScalarResidence_t;

typedef enum {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef struct {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

typedef struct ncclParamHandle* ncclParamHandle_t;

/* ---- Functions ------------------------------------------------------------------------------------------------ */

/* Declares ncclX and its twin pncclX. */
#define THESEUS_NCCL_DECLARE(return_type, name, parameters) \
  return_type name parameters;                              \
  return_type p##name parameters

/* The library and its errors. ncclGetLastError gives the calling thread's last message in full: the code alone seldom
 * tells which argument, rank or setting was at fault. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetVersion, (int* version));
THESEUS_NCCL_DECLARE(const char*, ncclGetErrorString, (ncclResult_t result));
THESEUS_NCCL_DECLARE(const char*, ncclGetLastError, (ncclComm_t comm));
THESEUS_NCCL_DECLARE(void, ncclResetDebugInit, (void));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t* config));

/* Making communicators. A failing call leaves NULL in *comm. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * uniqueId));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommInitRankConfig,
                     (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommInitRankScalable,
                     (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                      ncclConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommInitAll, (ncclComm_t * comm, int ndev, const int* devlist));
/* Collective over comm. NCCL_SPLIT_NOCOLOR gives NULL; config NULL inherits the parent's options. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommSplit,
                     (ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config));
/* Called by the ranks that stay. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommShrink,
                     (ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                      ncclConfig_t* config, int shrinkFlags));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId* uniqueId));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommGrow,
                     (ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                      ncclConfig_t* config));

/* Ending them. ncclCommAbort always returns, whatever state the other ranks are in. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommFinalize, (ncclComm_t comm));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommDestroy, (ncclComm_t comm));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommAbort, (ncclComm_t comm));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommResume, (ncclComm_t comm));

/* Asking them. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* asyncError));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int* count));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int* device));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int* rank));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value));

/* Memory. Buffers of ncclMemAlloc are shared between the ranks of a host, so that collectives on them need no copy. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclMemAlloc, (void** ptr, size_t size));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclMemFree, (void* ptr));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void* buff, size_t size, void** handle));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void* handle));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommWindowRegister,
                     (ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void** outUserPtr));

/* Reduction operators of one's own: each input is multiplied by *scalar (of type datatype), then summed. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclRedOpCreatePreMulSum,
                     (ncclRedOp_t * op, void* scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
                      ncclComm_t comm));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* Collectives. Counts are in elements. In place means: sendbuff == recvbuff, or for the block of one's own,
 * sendbuff == recvbuff + rank * count (all-gather, gather at the root) and recvbuff == sendbuff + rank * count
 * (reduce-scatter, scatter at the root). */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclReduce,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                      int root, ncclComm_t comm, cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclBcast,
                     (void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                      cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclBroadcast,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                      ncclComm_t comm, cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclAllReduce,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                      ncclComm_t comm, cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclReduceScatter,
                     (const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                      ncclComm_t comm, cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclAllGather,
                     (const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                      cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclAlltoAll,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                      cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGather,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                      ncclComm_t comm, cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclScatter,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                      ncclComm_t comm, cudaStream_t stream));

/* The same with options for this one call; config NULL is the plain call. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclAllReduceConfig,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclBroadcastConfig,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclReduceConfig,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                      int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclAllGatherConfig,
                     (const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                      cudaStream_t stream, const ncclCollConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclReduceScatterConfig,
                     (const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclAlltoAllConfig,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                      cudaStream_t stream, const ncclCollConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGatherConfig,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclScatterConfig,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config));

/* Point to point. Every send needs a receive of the same type and count; put what must progress together in a group. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclSend,
                     (const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclRecv,
                     (void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclPutSignal,
                     (const void* localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
                      size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                      cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclSignal,
                     (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclWaitSignal,
                     (int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t stream));

/* Groups: the calls between start and end run as one. They nest; each thread has its own. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGroupStart, (void));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGroupEnd, (void));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * simInfo));

/* Settings, by name (the variables that `theseus env` lists). Strings stay owned by the library. */
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamBind, (ncclParamHandle_t * out, const char* key));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetI8, (ncclParamHandle_t h, int8_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetI16, (ncclParamHandle_t h, int16_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetI32, (ncclParamHandle_t h, int32_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetI64, (ncclParamHandle_t h, int64_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetU8, (ncclParamHandle_t h, uint8_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetU16, (ncclParamHandle_t h, uint16_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetU32, (ncclParamHandle_t h, uint32_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetU64, (ncclParamHandle_t h, uint64_t* out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t h, const char** out));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGet, (ncclParamHandle_t h, void* out, int maxLen, int* len));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetParameter, (const char* key, const char** value, int* valueLen));
THESEUS_NCCL_DECLARE(ncclResult_t, ncclParamGetAllParameterKeys, (const char*** table, int* tableLen));
THESEUS_NCCL_DECLARE(void, ncclParamDumpAll, (void));

#ifdef __cplusplus
}
#endif

#endif
