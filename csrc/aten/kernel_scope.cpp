// See kernel_scope.h.
#include "aten/kernel_scope.h"

#include "driver/driver.h"

#include <c10/core/DeviceType.h>

#include <dlfcn.h>

namespace simdev {

namespace {

// at::set_num_threads() is for the whole process; OpenMP's own setting is per thread.  The one libgomp in the process is
// PyTorch's, which is found by name here rather than linked, since a second copy would be another runtime.
using SetNumThreads = void (*)(int);

SetNumThreads findSetNumThreads() {
  return reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
}

// Whether tasks run on the chip's own threads, as host code.  A GPU's driver calls them on the thread that launches.
bool onDeviceThread() {
  static const bool result =
      driver().kernelDeviceType() == c10::DeviceType::CPU && driver().hasNativeKernels();
  return result;
}

void setTeamSize(bool parallel) {
  static const SetNumThreads setNumThreads = findSetNumThreads();
  static const int all = driver().deviceProperties(0).multiProcessorCount;
  thread_local int current = 0;
  const int wanted = parallel ? all : 1;
  if (setNumThreads != nullptr && current != wanted) {
    setNumThreads(wanted);
    current = wanted;
  }
}

} // namespace

thread_local c10::DeviceIndex KernelScope::current_ = -1;

KernelScope::KernelScope(c10::DeviceIndex device, bool parallel) : previous_(current_) {
  if (onDeviceThread()) {
    current_ = device;
    setTeamSize(parallel);
  }
}

KernelScope::~KernelScope() {
  current_ = previous_;
}

} // namespace simdev
