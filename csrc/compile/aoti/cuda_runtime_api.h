// The CUDA runtime's names for simdev, as far as AOTInductor's runtime uses them.
//
// That runtime is a set of headers compiled into every package.  They load weights, record when a run has finished and
// free what they allocated, for the devices that they know by name; a device from outside of PyTorch has no way in.  Since
// all they ask of CUDA is a dozen functions, these are given to simdev under CUDA's names, as ROCm does with its own.  Only
// generated code sees them (aoti_include/simdev.h).
#pragma once

#include <simdev_aoti.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// The device's name in a device string is "cuda" there (aoti_runner.cpp), and this is what it stands for.
#define aoti_torch_device_type_cuda aoti_torch_device_type_privateuse1

using cudaError_t = AOTITorchError;
using cudaStream_t = void*;
using cudaEvent_t = AOTISimdevEventHandle;
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDefault };

inline constexpr cudaError_t cudaSuccess = AOTI_TORCH_SUCCESS;
inline constexpr cudaError_t cudaErrorNotReady = 600; // is no failure, and none of AOTITorchError's codes

inline const char* cudaGetErrorString(cudaError_t /*error*/) {
  return aoti_torch_simdev_error_string();
}
inline cudaError_t cudaGetLastError() {
  return AOTI_TORCH_FAILURE; // asked for after a failure only
}

inline cudaError_t cudaGetDevice(int* device) {
  return aoti_torch_simdev_get_device(device);
}
inline cudaError_t cudaSetDevice(int device) {
  return aoti_torch_simdev_set_device(device);
}

inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return aoti_torch_simdev_malloc(bytes, pointer);
}
inline cudaError_t cudaFree(void* pointer) {
  return aoti_torch_simdev_free(pointer);
}
inline cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind /*kind*/) {
  return aoti_torch_simdev_memcpy(dst, src, bytes);
}

inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return aoti_torch_simdev_create_event(event);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return aoti_torch_simdev_delete_event(event);
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return aoti_torch_simdev_record_event(event, stream);
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  bool done = false;
  const cudaError_t error = aoti_torch_simdev_query_event(event, &done);
  return error == cudaSuccess && !done ? cudaErrorNotReady : error;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return aoti_torch_simdev_synchronize_event(event);
}
