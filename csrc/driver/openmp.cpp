// See openmp.h.
#include "csrc/driver/openmp.h"

#include <dlfcn.h>

#include <cstring>

namespace simdev {

namespace {

template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

} // namespace

OpenMP::OpenMP() {
  find(setNumThreads, "omp_set_num_threads");
  find(pauseResourceAll, "omp_pause_resource_all");
  find(parallel, "GOMP_parallel");
  Dl_info library;
  if (pauseResourceAll == nullptr || parallel == nullptr ||
      dladdr(reinterpret_cast<void*>(pauseResourceAll), &library) == 0 ||
      std::strstr(library.dli_fname, "libgomp") == nullptr) {
    pauseResourceAll = nullptr;
    parallel = nullptr;
  }
}

const OpenMP& OpenMP::get() {
  static const OpenMP openmp;
  return openmp;
}

} // namespace simdev
