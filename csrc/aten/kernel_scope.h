// What holds on a thread of the device while it runs one of ATen's kernels there: the dispatcher's state, how many threads
// the kernel may use, and where its temporaries come from.
//
// ATen parallelises with OpenMP from 32,768 elements on, and each worker is the master of a team of its own.  Where the host
// has a team too, waking a team's members costs 15 to 60 us (driver/openmp_team.h): as long as adding a few hundred thousand
// elements.  So a task that moves little memory and does little arithmetic runs on the worker alone.
#pragma once

#include "aten/backing.h"

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace simdev {

// The compute threads of a device.
int computeThreads();

class KernelScope {
 public:
  // `device`: whose workspace (runtime/workspace.h) serves large allocations.  `parallel`: more than one thread may work.
  KernelScope(c10::DeviceIndex device, bool parallel);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  // The device whose kernel the calling thread runs; -1 for none.
  static c10::DeviceIndex device() noexcept { return current_; }

 private:
  static thread_local c10::DeviceIndex current_;
  KernelDispatchGuard guard_;
  c10::DeviceIndex previous_;
};

// An operator whose largest argument or result has fewer bytes runs on the worker alone.
inline constexpr size_t kParallelBytes = size_t(512) << 10;
inline constexpr size_t kParallelBytesOfComputeBound = size_t(64) << 10;
// The same for those whose multiplications are easily counted: products of matrices, convolutions, attention.
inline constexpr int64_t kParallelMultiplications = int64_t{4} << 20;

// Whether a task that goes through this tensor, and through none that is larger, is worth more than one thread.
inline bool isLarge(const at::Tensor& tensor) {
  return tensor.nbytes() >= kParallelBytes;
}

} // namespace simdev
