// Helpers that a program has besides this library's threads (simSetTeam).
#pragma once

#include <atomic>
#include <cstdint>

#include "simdev.h"

namespace sim {

class Team {
 public:
  static void set(const simTeam& team) noexcept {
    run_.store(team.run, std::memory_order_release);
    release_.store(team.release, std::memory_order_release);
  }

  // Runs body(data) on the calling thread and on those of its team; false, and nothing has run, if it has none.
  static bool run(void (*body)(void* data), void* data) noexcept {
    const auto function = run_.load(std::memory_order_acquire);
    return function != nullptr && function(body, data) != 0;
  }

  // To be called before the calling thread sleeps.  Returns for how long it may sleep before the next such call, in
  // nanoseconds; 0: without limit.
  static uint64_t prepareToSleep() noexcept {
    const auto function = release_.load(std::memory_order_acquire);
    return function != nullptr ? function() : 0;
  }

 private:
  static inline std::atomic<decltype(simTeam::run)> run_{nullptr};
  static inline std::atomic<decltype(simTeam::release)> release_{nullptr};
};

} // namespace sim
