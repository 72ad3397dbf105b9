// The compute threads of a device.
//
// A launch of many blocks is a loop that the stream's worker starts and that the device's other compute
// threads join. They start when the first such launch comes, and sleep while there is none.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "futex.h"

namespace sim {

struct Execution;

// A loop body: [begin, end) of the loop's range.  Must not throw.
struct LoopBody {
  void (*function)(void* data, uint64_t begin, uint64_t end);
  void* data;
};

class ComputePool {
 public:
  ComputePool(int device, int threads) : device_(device), threads_(threads) {}
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  // The caller and its helpers.
  int threads() const noexcept { return threads_; }

  // Runs the body over [0, count) in pieces of `grain`, on the calling thread and its team (team.h) or on those of the
  // others that are free; the helpers prefer the loop with the smallest priority.
  void
  parallelFor(Execution& execution, uint64_t count, uint64_t grain, int priority, LoopBody body) noexcept;

 private:
  struct Loop {
    Execution* execution;
    LoopBody body;
    uint64_t count;
    uint64_t grain;
    int priority;
    Loop* next = nullptr;
    std::atomic<uint64_t> begin{0}; // of what nobody has taken yet
    // Helpers inside of the loop, and kOwnerSleeps.
    std::atomic<uint32_t> helpers{0};

    bool exhausted() const noexcept { return begin.load(std::memory_order_relaxed) >= count; }
    void work() noexcept;
    static void workAsMember(void* loop) noexcept;
  };
  static constexpr uint32_t kOwnerSleeps = 1u << 31;

  void startHelpers() noexcept;
  void helperMain() noexcept;
  Loop* join() noexcept;

  const int device_;
  const int threads_;
  std::once_flag started_;
  SpinLock lock_; // of the list
  Loop* loops_ = nullptr; // by priority
  alignas(kCacheLine) std::atomic<uint32_t> signal_{0}; // changes whenever a loop is added
  std::atomic<uint32_t> sleepers_{0};
};

} // namespace sim
