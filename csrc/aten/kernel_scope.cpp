// See kernel_scope.h.
#include "aten/kernel_scope.h"

#include "driver/driver.h"
#include "driver/openmp_team.h"

#include <c10/core/DeviceType.h>

namespace simdev {

namespace {

// Whether tasks run on the chip's own threads, as host code.  A GPU's driver calls them on the thread that launches.
bool onDeviceThread() {
  static const bool result =
      driver().kernelDeviceType() == c10::DeviceType::CPU && driver().hasNativeKernels();
  return result;
}

} // namespace

int computeThreads() {
  static const int threads = driver().deviceProperties(0).multiProcessorCount;
  return threads;
}

thread_local c10::DeviceIndex KernelScope::current_ = -1;

KernelScope::KernelScope(c10::DeviceIndex device, bool parallel) : previous_(current_) {
  if (onDeviceThread()) {
    current_ = device;
    setTeamSize(parallel ? computeThreads() : 1);
  }
}

KernelScope::~KernelScope() {
  current_ = previous_;
}

} // namespace simdev
