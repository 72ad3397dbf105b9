// Per-thread team sizes.  See kernel_threads.h.
#include "aten/kernel_threads.h"

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

} // namespace

void setKernelParallelism(bool parallel) {
  static const SetNumThreads setNumThreads = findSetNumThreads();
  static const bool onWorker =
      driver().kernelDeviceType() == c10::DeviceType::CPU && driver().hasNativeKernels();
  static const int all = onWorker ? driver().deviceProperties(0).multiProcessorCount : 0;
  thread_local int current = 0;
  const int wanted = parallel ? all : 1;
  if (onWorker && setNumThreads != nullptr && current != wanted) {
    setNumThreads(wanted);
    current = wanted;
  }
}

} // namespace simdev
