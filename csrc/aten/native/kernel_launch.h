// Launching native kernels: finding tensors' memory and packing arguments.
//
// A native kernel is a plain function over raw pointers, called once per block (driver.h).  This is the tier that a vendor
// replaces first: kernels here are what a chip would run itself.
#pragma once

#include "aten/native/kernel_grid.h"
#include "driver/driver.h"
#include "runtime/stream.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <type_traits>

namespace simdev::native {

// Where a kernel finds the first element of a tensor that it reads, or of one that it writes.  Writing ends the sharing of
// copy-on-write storage: of a tensor that is written in place, take the output first and read what that gives.
inline const void* kernelInput(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return driver().kernelPointer(impl->device().index(), const_cast<void*>(impl->data()));
}

inline void* kernelOutput(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return driver().kernelPointer(impl->device().index(), impl->mutable_data());
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
