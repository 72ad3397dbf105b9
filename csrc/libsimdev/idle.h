// What a thread does before it sleeps.
//
// A thread without work may hold what others could use, and only its program knows: the library offers the moment.
#pragma once

#include <atomic>
#include <cstdint>

#include "futex.h"
#include "simdev.h"

namespace sim {

class Idle {
 public:
  static void setCallback(simIdleFn_t callback) noexcept {
    callback_.store(callback, std::memory_order_release);
  }

  // To be called before the calling thread sleeps.  Returns for how long it may sleep before the next such call, in
  // nanoseconds; 0: without limit.
  static uint64_t prepare() noexcept {
    const simIdleFn_t callback = callback_.load(std::memory_order_acquire);
    return callback != nullptr ? callback() : 0;
  }

 private:
  static inline std::atomic<simIdleFn_t> callback_{nullptr};
};

} // namespace sim
