// A fence in two halves: nothing on the side that is in a hurry, everything on the side that is about to
// sleep.
//
// Handing over work is "write the command, then look whether the worker sleeps"; going to sleep is "say so,
// then look for a command".  Neither may see the other's old state, which takes a full barrier between the
// two steps on both sides, and a barrier waits until the command's cache lines have been won from the worker
// that polls them.  Linux's membarrier() executes a barrier on all threads of the process, so the sleeping
// side can pay for both.
#pragma once

#include <atomic>

namespace sim {

class AsymmetricFence {
 public:
  // When the runtime starts, before there is a worker.
  static void prepare() noexcept;

  // Between the steps of the frequent side.
  static void light() noexcept {
    if (available_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  // Between the steps of the rare side.
  static void heavy() noexcept;

 private:
  static inline bool available_ = false;
};

} // namespace sim
