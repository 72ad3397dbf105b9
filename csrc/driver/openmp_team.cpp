// See openmp_team.h.
#include "csrc/driver/openmp_team.h"

#include "csrc/driver/openmp.h"
#include "csrc/driver/openmp_crowd.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace simdev {

namespace {

// Of a thread's time, at most about one part in 150 goes into new teams.
constexpr uint64_t kNanosecondsBetweenTeams = 5'000'000; // for each of its threads

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
  if (threads > 1) {
    teamSize = std::max(teamSize, threads);
    OpenMPCrowd::watch(now());
  }
}

uint64_t releaseTeam() noexcept {
  static const uint64_t interval =
      kNanosecondsBetweenTeams * std::max(1u, std::thread::hardware_concurrency());
  thread_local uint64_t next = 0;
  if (!OpenMP::get().isGcc()) {
    return 0;
  }
  const uint64_t time = now();
  OpenMPCrowd::watch(time);
  if (time < next) {
    return next - time;
  }
  // Refused, without effect, inside of a parallel region: the caller waits for the device as a member of a team.
  OpenMP::get().pauseResourceAll(kOpenMPPauseSoft);
  teamSize = 0;
  next = now() + interval;
  return 0;
}

int runOnTeam(void (*body)(void* data), void* data) noexcept {
  if (teamSize <= 1 || !OpenMP::get().isGcc() || OpenMPCrowd::membersSleep()) {
    return 0;
  }
  OpenMP::get().parallel(body, data, static_cast<unsigned>(teamSize), /*flags=*/0);
  return 1;
}

} // namespace simdev
