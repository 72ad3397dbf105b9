// How far a stream has got, and who waits for it.
//
// A timeline is a counter that only rises.  Each piece of work of a stream has a *ticket*: the value that the
// stream's timeline reaches when the work is done.  That makes an event a pair (timeline, ticket), a wait a
// comparison, and waiting for "all that was queued before" need no marker in the queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

#include "fence.h"
#include "futex.h"

namespace sim {

class Timeline {
 public:
  bool reached(uint64_t ticket) const noexcept { return now() >= ticket; }
  uint64_t now() const noexcept { return now_.load(std::memory_order_acquire); }

  // By the one thread that owns the timeline.  Costs a store and a load while nobody sleeps.
  void advance(uint64_t ticket) noexcept {
    now_.store(ticket, std::memory_order_release);
    AsymmetricFence::light();
    if (ticket >= firstWake_.load(std::memory_order_relaxed)) [[unlikely]] {
      wake(ticket);
    }
  }

  // Returns when the ticket is reached.  Looks for `spinNanoseconds` before it sleeps.
  void wait(uint64_t ticket, uint64_t spinNanoseconds) noexcept;

 private:
  struct Waiter {
    uint64_t ticket;
    Waiter* next;
    std::atomic<uint32_t> woken{0};
  };
  static constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

  void wake(uint64_t ticket) noexcept;
  void updateFirstWake() noexcept;

  alignas(kCacheLine) std::atomic<uint64_t> now_{0};
  // The lowest ticket that a sleeper waits for.  Apart from now_, which those who spin keep taking.
  alignas(kCacheLine) std::atomic<uint64_t> firstWake_{kNobody};
  std::mutex mutex_;
  Waiter* waiters_ = nullptr;
};

} // namespace sim
