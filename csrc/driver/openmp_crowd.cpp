// See openmp_crowd.h.
#include "csrc/driver/openmp_crowd.h"

#include "csrc/driver/openmp.h"
#include "csrc/libsimdev/worker_thread.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>

namespace simdev {

namespace {

constexpr uint64_t kMillisecond = 1'000'000; // in nanoseconds
// Long enough to tell a full machine from threads of ours that meet now and then.
constexpr uint64_t kBetweenLooks = 50 * kMillisecond;
// Of a thread's time, from which part on its queueing counts: 1 in 4.
constexpr uint64_t kQueueingShare = 4;
constexpr uint64_t kShortestCrowd = 200 * kMillisecond;
constexpr uint64_t kLongestCrowd = 10'000 * kMillisecond;

// How long the calling thread was ready to run and had to wait, in nanoseconds; 0 where the kernel does not say.
uint64_t queueingTime() noexcept {
  struct File {
    int descriptor = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ~File() { close(descriptor); }
  };
  thread_local const File file;
  char text[64] = {};
  unsigned long long ran = 0;
  unsigned long long queued = 0;
  if (pread(file.descriptor, text, sizeof(text) - 1, 0) <= 0 ||
      sscanf(text, "%llu %llu", &ran, &queued) != 2) {
    return 0;
  }
  return queued;
}

// The thread with the team that does nothing.
class Crowd {
 public:
  static Crowd& instance() {
    static auto* crowd = new Crowd; // its thread does not end
    return *crowd;
  }

  bool isThere() const noexcept { return there_.load(std::memory_order_relaxed); }

  void update(uint64_t now, bool queueing) {
    std::lock_guard lock(mutex_);
    if (queueing) {
      if (!isThere()) {
        stay_ = now - end_ < 8 * stay_ ? std::min(2 * stay_, kLongestCrowd) : kShortestCrowd;
        set(true);
      }
      end_ = now + stay_;
    } else if (isThere() && now >= end_) {
      end_ = now;
      set(false);
    }
  }

 private:
  void set(bool there) {
    if (!started_) {
      sim::startThread("simdev:crowd", [this] { run(); });
      started_ = true;
    }
    there_.store(there, std::memory_order_relaxed);
    changed_.notify_one();
  }

  void run() {
    for (;;) {
      wait(true);
      OpenMP::get().parallel([](void*) {}, nullptr, std::thread::hardware_concurrency() + 1, 0);
      wait(false);
      OpenMP::get().pauseResourceAll(kOpenMPPauseSoft);
    }
  }

  void wait(bool there) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return isThere() == there; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> there_{false}; // changes under the mutex
  bool started_ = false;
  uint64_t stay_ = kShortestCrowd;
  uint64_t end_ = 0; // while it is there, when it may go; then, when it went
};

} // namespace

void OpenMPCrowd::watch(uint64_t now) noexcept {
  thread_local uint64_t looked = 0;
  thread_local uint64_t queuedThen = 0;
  if (now - looked < kBetweenLooks || !OpenMP::get().isGcc()) {
    return;
  }
  const uint64_t queued = queueingTime();
  const bool queueing = looked != 0 && (queued - queuedThen) * kQueueingShare > now - looked;
  looked = now;
  queuedThen = queued;
  if (queueing || membersSleep()) {
    try {
      Crowd::instance().update(now, queueing);
    } catch (const std::exception&) { // no more threads: all goes on as it is
    }
  }
}

bool OpenMPCrowd::membersSleep() noexcept {
  return Crowd::instance().isThere();
}

} // namespace simdev
