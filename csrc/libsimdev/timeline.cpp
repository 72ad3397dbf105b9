// Sleeping until a timeline reaches a ticket.
//
// Each sleeper waits for its own ticket and is woken once, when that is reached: a host thread that waits for
// the last of a thousand kernels does not slow down the other 999.
#include "timeline.h"

#include <algorithm>

#include "team.h"

namespace sim {

void Timeline::wait(uint64_t ticket, uint64_t spinNanoseconds) noexcept {
  if (reached(ticket)) {
    return;
  }
  if (spinNanoseconds > 0) {
    const uint64_t end = nowNanoseconds() + spinNanoseconds;
    do {
      for (int i = 0; i < 16; ++i) {
        cpuRelax();
        if (reached(ticket)) {
          return;
        }
      }
    } while (nowNanoseconds() < end);
  }
  uint64_t patience = Team::prepareToSleep();
  Waiter waiter{ticket, nullptr};
  {
    std::lock_guard lock(mutex_);
    waiter.next = waiters_;
    waiters_ = &waiter;
    updateFirstWake();
    // advance() stores now_ and then reads firstWake_; here it is the other way round, so one of the two
    // notices.
    AsymmetricFence::heavy();
    if (reached(ticket)) {
      waiters_ = waiter.next;
      updateFirstWake();
      return;
    }
  }
  while (waiter.woken.load(std::memory_order_acquire) == 0) {
    if (!futexWait(waiter.woken, 0, patience)) {
      patience = Team::prepareToSleep();
    }
  }
}

void Timeline::wake(uint64_t ticket) noexcept {
  std::lock_guard lock(mutex_);
  for (Waiter** link = &waiters_; *link != nullptr;) {
    Waiter* const waiter = *link;
    if (waiter->ticket > ticket) {
      link = &waiter->next;
      continue;
    }
    *link = waiter->next;
    // From the store on, the waiter may return and its stack frame be gone; futexWake() allows for that.
    std::atomic<uint32_t>& woken = waiter->woken;
    woken.store(1, std::memory_order_release);
    futexWake(woken, 1);
  }
  updateFirstWake();
}

void Timeline::updateFirstWake() noexcept {
  uint64_t first = kNobody;
  for (const Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
    first = std::min(first, waiter->ticket);
  }
  firstWake_.store(first, std::memory_order_relaxed);
}

} // namespace sim
