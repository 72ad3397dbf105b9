// The CUDA driver's names that AOTInductor's runtime mentions beside the runtime's (cuda_runtime_api.h): for unloading
// modules of kernels, of which a package for simdev has none, since its kernels are part of its library.
#pragma once

using CUmodule = void*;
using CUresult = int;
inline constexpr CUresult CUDA_SUCCESS = 0;

inline CUresult cuModuleUnload(CUmodule /*module*/) {
  return CUDA_SUCCESS;
}
inline CUresult cuGetErrorString(CUresult /*error*/, const char** /*text*/) {
  return CUDA_SUCCESS;
}
