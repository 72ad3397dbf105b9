// See openmp_team.h.
#include "csrc/driver/openmp_team.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace simdev {

namespace {

// Of a thread's time, at most about one part in 150 goes into new teams.
constexpr uint64_t kNanosecondsBetweenTeams = 5'000'000; // for each of its threads

// The OpenMP in the process is PyTorch's, which is found by name rather than linked, since a second copy would be another
// runtime.
struct OpenMP {
  void (*setNumThreads)(int) = nullptr;
  int (*pauseResourceAll)(int kind) = nullptr; // null where that would not be what releaseTeam() says

  OpenMP() {
    setNumThreads = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    void* const pause = dlsym(RTLD_DEFAULT, "omp_pause_resource_all");
    Dl_info library;
    // In GCC's, this is the calling thread's team; in LLVM's and Intel's, it stops those of all threads.
    if (pause != nullptr && dladdr(pause, &library) != 0 &&
        std::strstr(library.dli_fname, "libgomp") != nullptr) {
      pauseResourceAll = reinterpret_cast<int (*)(int)>(pause);
    }
  }

  static const OpenMP& get() {
    static const OpenMP openmp;
    return openmp;
  }
};

constexpr int kPauseSoft = 1; // omp_pause_soft: what is set for the thread stays

uint64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

void setTeamSize(int threads) {
  thread_local int current = 0;
  if (OpenMP::get().setNumThreads != nullptr && current != threads) {
    OpenMP::get().setNumThreads(threads);
    current = threads;
  }
}

uint64_t releaseTeam() noexcept {
  static const uint64_t interval =
      kNanosecondsBetweenTeams * std::max(1u, std::thread::hardware_concurrency());
  thread_local uint64_t next = 0;
  if (OpenMP::get().pauseResourceAll == nullptr) {
    return 0;
  }
  const uint64_t time = now();
  if (time < next) {
    return next - time;
  }
  // Refused, without effect, inside of a parallel region: the caller waits for the device as a member of a team.
  OpenMP::get().pauseResourceAll(kPauseSoft);
  next = now() + interval;
  return 0;
}

} // namespace simdev
