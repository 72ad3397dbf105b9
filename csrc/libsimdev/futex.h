// The smallest building blocks of waiting: a CPU pause, the futex system call, a spin lock.
//
// Lives here: primitives without policy.  Does not live here: who waits for what and how long it spins before
// that (stream.cpp, compute_pool.cpp).  They are futexes and not std::condition_variable because the side
// that wakes must cost a few nanoseconds while nobody sleeps, and because a waker may outlive what it wakes.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace sim {

constexpr size_t kCacheLine = 64;

inline void cpuRelax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Nanoseconds of CLOCK_MONOTONIC: the device's clock, and what spinning is measured with.
inline uint64_t nowNanoseconds() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

// Sleeps while word == expected, at most for `nanoseconds` unless that is 0.  Returns false when the time is over;
// may return true for no reason, so callers loop.
inline bool futexWait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t nanoseconds = 0) noexcept {
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000u);
  timeout.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000u);
  const long result = syscall(
      SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nanoseconds != 0 ? &timeout : nullptr, nullptr, 0);
  return result == 0 || errno != ETIMEDOUT;
}

// Wakes up to `count` sleepers.  The word may be gone already: the kernel uses its address as a name only.
inline void futexWake(std::atomic<uint32_t>& word, int count = INT_MAX) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// For critical sections of some tens of instructions.  On a machine with few CPUs the holder may have been
// preempted, hence the yield.
class SpinLock {
 public:
  void lock() noexcept {
    for (unsigned spins = 0; locked_.exchange(true, std::memory_order_acquire); ++spins) {
      while (locked_.load(std::memory_order_relaxed)) {
        if (++spins % 128 == 0) {
          sched_yield();
        }
        cpuRelax();
      }
    }
  }
  bool try_lock() noexcept { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

} // namespace sim
