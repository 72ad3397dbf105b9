// How many threads may look for work instead of sleeping.
//
// A thread that has just run something looks for more for a while, because sleeping and being woken costs
// several times the hand-over itself.  But it takes a CPU from others while it looks, so there is a limit for
// the whole process.
#pragma once

#include <atomic>
#include <cstdint>

#include "futex.h"

namespace sim {

class Spinning {
 public:
  static void setCpus(int cpus) noexcept {
    limit_.value.store(cpus > 1 ? cpus - 1 : 1, std::memory_order_relaxed);
  }

  // Calls found() until it returns true, the time is over, or too many threads do the same.  `spare` CPUs
  // stay free.
  template <class Found>
  static bool until(uint64_t nanoseconds, int spare, Found&& found) noexcept {
    if (spinning_.value.fetch_add(1, std::memory_order_relaxed) >=
        limit_.value.load(std::memory_order_relaxed) - spare) {
      spinning_.value.fetch_sub(1, std::memory_order_relaxed);
      return false;
    }
    const uint64_t end = nowNanoseconds() + nanoseconds;
    bool success = false;
    do {
      for (int i = 0; i < 16 && !success; ++i) {
        success = found();
        cpuRelax();
      }
    } while (!success && nowNanoseconds() < end);
    spinning_.value.fetch_sub(1, std::memory_order_relaxed);
    return success;
  }

 private:
  // On cache lines of their own: the count changes whenever a worker runs out of work, and its neighbours in
  // memory would be variables that every call reads.
  struct alignas(kCacheLine) Counter {
    std::atomic<int> value;
  };
  static inline Counter spinning_{0};
  static inline Counter limit_{1};
};

} // namespace sim
