/* A CUDA driver for tests on machines without a GPU: as much of libcuda as PyTorch asks for beside the runtime
 * (cudart.c), of which it uses the device, current context and pointers. The names below that are not defined here
 * return CUDA_ERROR_NOT_SUPPORTED; build.py makes them. */
#include <stddef.h>

enum { kSuccess = 0, kDevices = 8 };

static int context;
static _Thread_local void* current = &context;

int cuInit(unsigned flags) { return (void)flags, kSuccess; }
int cuDriverGetVersion(int* version) { return *version = 1000 * FAKE_CUDA_MAJOR, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = kDevices, kSuccess; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, kSuccess; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return (void)attribute, (void)device, *value = 0, kSuccess;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** out, int device) { return (void)device, *out = &context, kSuccess; }
int cuCtxGetCurrent(void** out) { return *out = current, kSuccess; }
int cuCtxSetCurrent(void* given) { return current = given, kSuccess; }
int cuGetErrorString(int error, const char** text) {
  *text = error == kSuccess ? "no error" : "the fake CUDA driver of the tests does not have this";
  return kSuccess;
}
