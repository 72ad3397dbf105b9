// The compute threads of a device: sharing out the blocks of a launch.
#include "compute_pool.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "execution.h"
#include "spinning.h"
#include "team.h"
#include "worker_thread.h"

namespace sim {

namespace {

// Helpers look for the next launch this long, if the machine has a CPU to spare for it.
constexpr uint64_t kHelperSpinNanoseconds = 20'000;

} // namespace

void ComputePool::Loop::work() noexcept {
  for (;;) {
    const uint64_t first = begin.fetch_add(grain, std::memory_order_relaxed);
    if (first >= count) {
      return;
    }
    body.function(body.data, first, std::min(first + grain, count));
  }
}

void ComputePool::Loop::workAsMember(void* loop) noexcept {
  auto& self = *static_cast<Loop*>(loop);
  Execution* const outer = std::exchange(thisThread.execution, self.execution); // the owner has one already
  self.work();
  thisThread.execution = outer;
}

void ComputePool::parallelFor(
    Execution& execution,
    uint64_t count,
    uint64_t grain,
    int priority,
    LoopBody body) noexcept {
  if (threads_ == 1 || count <= grain) {
    body.function(body.data, 0, count);
    return;
  }
  startHelpers();
  Loop loop{&execution, body, count, grain, priority};
  {
    std::lock_guard lock(lock_);
    Loop** link = &loops_;
    while (*link != nullptr && (*link)->priority <= priority) {
      link = &(*link)->next;
    }
    loop.next = *link;
    *link = &loop;
  }
  // A team that is there has a processor already, on which it would hold up a helper that wakes.
  if (!Team::run(&Loop::workAsMember, &loop)) {
    signal_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      const uint64_t pieces = (count + grain - 1) / grain;
      futexWake(signal_, static_cast<int>(std::min<uint64_t>(pieces - 1, threads_ - 1)));
    }
    loop.work();
  }
  {
    std::lock_guard lock(lock_); // from here on nobody joins
    Loop** link = &loops_;
    while (*link != &loop) {
      link = &(*link)->next;
    }
    *link = loop.next;
  }
  for (int spins = 0; spins < 200 && loop.helpers.load(std::memory_order_acquire) != 0; ++spins) {
    cpuRelax();
  }
  if (loop.helpers.load(std::memory_order_acquire) != 0) {
    loop.helpers.fetch_or(kOwnerSleeps, std::memory_order_acq_rel);
    for (uint32_t state; (state = loop.helpers.load(std::memory_order_acquire)) != kOwnerSleeps;) {
      futexWait(loop.helpers, state);
    }
  }
}

ComputePool::Loop* ComputePool::join() noexcept {
  std::lock_guard lock(lock_);
  for (Loop* loop = loops_; loop != nullptr; loop = loop->next) {
    if (!loop->exhausted()) {
      loop->helpers.fetch_add(1, std::memory_order_relaxed);
      return loop;
    }
  }
  return nullptr;
}

void ComputePool::helperMain() noexcept {
  for (;;) {
    const uint32_t seen = signal_.load(std::memory_order_seq_cst);
    if (Loop* const loop = join()) {
      thisThread.execution = loop->execution;
      loop->work();
      thisThread.execution = nullptr;
      // With this the owner may return and the loop be gone.
      std::atomic<uint32_t>& helpers = loop->helpers;
      if (helpers.fetch_sub(1, std::memory_order_acq_rel) == (kOwnerSleeps | 1)) {
        futexWake(helpers, 1);
      }
      continue;
    }
    const auto signalled = [&] { return signal_.load(std::memory_order_relaxed) != seen; };
    if (Spinning::until(kHelperSpinNanoseconds, 1, signalled)) {
      continue;
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    futexWait(signal_, seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void ComputePool::startHelpers() noexcept {
  std::call_once(started_, [this] {
    for (int i = 1; i < threads_; ++i) {
      char name[32];
      snprintf(name, sizeof name, "sim%d:cpu%d", device_, i);
      try {
        startThread(name, [this] { helperMain(); });
      } catch (const std::exception&) {
        return; // fewer threads do the same work
      }
    }
  });
}

} // namespace sim
