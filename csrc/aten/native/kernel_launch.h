// Launching native kernels: packing arguments and choosing the grid.
//
// A native kernel is a plain function over raw pointers, called once per block (driver.h).  This is the tier that a vendor
// replaces first: kernels here are what a chip would run itself.
#pragma once

#include "driver/driver.h"
#include "runtime/stream.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace simdev::native {

// The elements [begin, end) that a block works on.
struct BlockRange {
  int64_t begin;
  int64_t end;
};

// Blocks start at multiples of 16 elements, so that they do not share cache lines.
inline BlockRange blockRange(const KernelContext& context, int64_t count) {
  const int64_t share = (count / context.grid + 16) & ~int64_t(15);
  const int64_t begin = std::min(count, share * context.block);
  return {begin, std::min(count, begin + share)};
}

// One block for what fits in a core's cache: waking another thread costs more than it saves.
inline uint32_t gridFor(int64_t bytes) {
  constexpr int64_t kBytesPerBlock = 512 * 1024;
  constexpr int64_t kMaxBlocks = 64;
  return static_cast<uint32_t>(std::clamp<int64_t>(bytes / kBytesPerBlock, 1, kMaxBlocks));
}

// Where a kernel finds the tensor's first element.
inline void* kernelData(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return driver().kernelPointer(impl->device().index(), const_cast<void*>(impl->data()));
}

// Whether the driver runs native kernels; without them every operator takes ATen's.
inline bool hasNativeKernels() {
  static const bool available = driver().hasNativeKernels();
  return available;
}

template <typename Arguments>
void launchKernel(
    c10::Device device,
    const char* name,
    KernelFunction kernel,
    uint32_t grid,
    const Arguments& arguments) {
  static_assert(std::is_trivially_copyable_v<Arguments>, "kernel arguments are copied as bytes");
  driver().launchKernel(
      currentStreamHandle(device.index()), name, kernel, grid, &arguments, sizeof(arguments));
}

} // namespace simdev::native
