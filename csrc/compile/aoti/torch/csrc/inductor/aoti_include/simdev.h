// What the code of an ahead-of-time package for simdev includes; AOTInductor finds it by the device's name.
#pragma once

#define USE_CUDA 1 // AOTInductor's runtime in CUDA's terms, which cuda_runtime_api.h gives to simdev
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <simdev_aoti.h>
#include <torch/csrc/inductor/aoti_include/common.h>
