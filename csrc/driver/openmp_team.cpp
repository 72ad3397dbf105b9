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
// runtime.  The last two are null where it is not GCC's: LLVM's and Intel's stop the teams of all threads at a pause.
struct OpenMP {
  void (*setNumThreads)(int) = nullptr;
  int (*pauseResourceAll)(int kind) = nullptr; // here: the calling thread's team
  void (*parallel)(void (*body)(void* data), void* data, unsigned threads, unsigned flags) = nullptr;

  OpenMP() {
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

  template <typename Function>
  static void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }

  static const OpenMP& get() {
    static const OpenMP openmp;
    return openmp;
  }
};

constexpr int kPauseSoft = 1; // omp_pause_soft: what is set for the thread stays

thread_local int threadsSet = 0; // for the next regions; 0 before it was ever set
thread_local int teamSize = 0; // the most that were set since the last release

uint64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

void setTeamSize(int threads) {
  if (OpenMP::get().setNumThreads != nullptr && threadsSet != threads) {
    OpenMP::get().setNumThreads(threads);
    threadsSet = threads;
  }
  teamSize = std::max(teamSize, threads);
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
  teamSize = 0;
  next = now() + interval;
  return 0;
}

int runOnTeam(void (*body)(void* data), void* data) noexcept {
  if (teamSize <= 1 || OpenMP::get().parallel == nullptr) {
    return 0;
  }
  OpenMP::get().parallel(body, data, static_cast<unsigned>(teamSize), /*flags=*/0);
  return 1;
}

} // namespace simdev
