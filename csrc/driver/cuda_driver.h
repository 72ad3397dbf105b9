// What the CUDA driver needs from PyTorch's Python frontend: c10 has no device-generic name for it, and asking CUDA itself
// would need its headers, and would spoil later forks.
#pragma once

#include "csrc/driver/driver.h"

#include <string>

namespace simdev {

struct CudaFrontend {
  // Why this process cannot use CUDA, for people to read; empty if it can.  Does not start CUDA.
  std::string (*unavailableReason)();
  // torch.cuda.device_count(), which does not start CUDA (it asks the NVIDIA management library).
  int (*deviceCount)();
  // torch.cuda.init(): runs what was queued for CUDA's start (seeds, ...), and says in words why CUDA cannot be had.
  void (*initialize)();
  DeviceProperties (*deviceProperties)(c10::DeviceIndex device);
  // torch.cuda._sleep() on CUDA's current device and stream.
  void (*sleep)(c10::DeviceIndex device, int64_t nanoseconds);
  bool (*canAccessPeer)(c10::DeviceIndex device, c10::DeviceIndex peer);
};

// Set when the extension module is loaded (csrc/bindings/delegate.cpp).  The functions take the GIL.
void setCudaFrontend(const CudaFrontend& frontend) noexcept;

} // namespace simdev
