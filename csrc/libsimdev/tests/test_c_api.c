/* The whole API in one page of C: adds two vectors on the device, as a first program for any accelerator would.
 *
 *   cc -Icsrc/libsimdev tests/test_c_api.c -Lbuild -lsimdev
 *
 * It is also the test that the header is C and that the library needs nothing else. */
#include "simdev.h"

#include <stdio.h>
#include <stdlib.h>

#define COUNT 100000

/* Every call returns an error code; the detail says which argument or kernel it was. */
static void check(simError_t error, const char* what) {
  if (error != simSuccess) {
    fprintf(stderr, "%s: %s %s\n", what, simGetErrorString(error), simGetLastErrorDetail());
    exit(1);
  }
}

/* What the kernel gets: device pointers and numbers, copied when it is launched. */
struct VectorAdd {
  const float* a;
  const float* b;
  float* sum;
  size_t count;
};

/* Called once for each block of the grid.  Device pointers mean nothing to the host; on the device,
 * simLocalPointer says where their memory is. */
static void vectorAdd(const simKernelContext* context, const void* arguments) {
  const struct VectorAdd* args = (const struct VectorAdd*)arguments;
  const float* a = (const float*)simLocalPointer(context, args->a);
  const float* b = (const float*)simLocalPointer(context, args->b);
  float* sum = (float*)simLocalPointer(context, args->sum);
  const size_t share = (args->count + context->gridDim.x - 1) / context->gridDim.x;
  const size_t begin = share * context->blockIdx.x;
  const size_t end = begin + share < args->count ? begin + share : args->count;
  size_t i;
  for (i = begin; i < end; ++i) {
    sum[i] = a[i] + b[i];
  }
}

int main(void) {
  static float a[COUNT], b[COUNT], sum[COUNT];
  const size_t bytes = sizeof(a);
  struct VectorAdd args;
  simLaunchConfig config = {{16, 1, 1}, {1, 1, 1}, NULL, "vectorAdd"};
  simStream_t stream;
  simEvent_t start, end;
  simDeviceProp properties;
  float milliseconds = -1;
  void *deviceA, *deviceB, *deviceSum;
  size_t i;
  int devices = 0;

  check(simGetDeviceCount(&devices), "simGetDeviceCount");
  check(simGetDeviceProperties(&properties, 0), "simGetDeviceProperties");
  for (i = 0; i < COUNT; ++i) {
    a[i] = (float)i;
    b[i] = 2 * (float)i;
  }

  check(simMalloc(&deviceA, bytes), "simMalloc");
  check(simMalloc(&deviceB, bytes), "simMalloc");
  check(simMalloc(&deviceSum, bytes), "simMalloc");
  check(simStreamCreate(&stream), "simStreamCreate");
  check(simEventCreate(&start), "simEventCreate");
  check(simEventCreate(&end), "simEventCreate");

  /* Everything below is queued on the stream and runs in order. */
  check(simMemcpyAsync(deviceA, a, bytes, simMemcpyHostToDevice, stream), "copy a");
  check(simMemcpyAsync(deviceB, b, bytes, simMemcpyHostToDevice, stream), "copy b");
  args.a = (const float*)deviceA;
  args.b = (const float*)deviceB;
  args.sum = (float*)deviceSum;
  args.count = COUNT;
  config.stream = stream;
  check(simEventRecord(start, stream), "simEventRecord");
  check(simLaunchKernel(&config, vectorAdd, &args, sizeof(args)), "simLaunchKernel");
  check(simEventRecord(end, stream), "simEventRecord");
  check(simMemcpyAsync(sum, deviceSum, bytes, simMemcpyDeviceToHost, stream), "copy sum");
  check(simStreamSynchronize(stream), "simStreamSynchronize"); /* errors of the kernel surface here */

  for (i = 0; i < COUNT; ++i) {
    if (sum[i] != 3 * (float)i) {
      fprintf(stderr, "element %lu is %f\n", (unsigned long)i, sum[i]);
      return 1;
    }
  }
  check(simEventElapsedTime(&milliseconds, start, end), "simEventElapsedTime");
  check(simFree(deviceA), "simFree");
  check(simFree(deviceB), "simFree");
  check(simFree(deviceSum), "simFree");
  check(simEventDestroy(start), "simEventDestroy");
  check(simEventDestroy(end), "simEventDestroy");
  check(simStreamDestroy(stream), "simStreamDestroy");
  printf(
      "c_api: 1 passed, 0 failed (%d devices, %s, kernel %.3f ms)\n", devices, properties.name, milliseconds);
  return milliseconds >= 0 ? 0 : 1;
}
