// A stream: a queue of commands, the thread that runs them, and how far it has got.
//
// Stream objects are never freed: a destroyed stream is used again for a later simStreamCreate on its device,
// its timeline going on from where it was.  So events and waits may point at a stream however long ago it was
// destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "command.h"
#include "command_queue.h"
#include "error.h"
#include "execution.h"
#include "futex.h"
#include "handle_table.h"
#include "timeline.h"

namespace sim {

class Capture;
class Device;

// How long a host thread looks for the end of work before it sleeps, about the cost of sleeping and being
// woken.
constexpr uint64_t kHostSpinNanoseconds = 20'000;

class Stream {
 public:
  enum class Errors : bool { Report, Ignore };

  Stream(Device& device, bool isDefault);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Makes the object a live stream (again).  The caller holds the device's lock.
  void open(unsigned flags, int priority) noexcept;
  // Ends the handle; the worker finishes what is queued and gives the object back to the device.
  void close();

  // The stream behind a handle; null is the default stream of the thread's device.
  static Stream& of(simStream_t handle);
  // Of the object's present or latest life.
  simStream_t handle() const noexcept {
    return reinterpret_cast<simStream_t>(handle_.load(std::memory_order_relaxed));
  }

  Device& device() const noexcept { return device_; }
  unsigned flags() const noexcept { return flags_; }
  int priority() const noexcept { return priority_; }
  bool isDefault() const noexcept { return isDefault_; }
  // Which life of the object this is: errors of one are not told to events of another.
  uint64_t incarnation() const noexcept { return incarnation_.load(std::memory_order_acquire); }

  // --- Work ---

  // Queues a command of type T with `extra` bytes behind it; `fill(T&)` writes everything but the header, and
  // must not throw.  Returns the command's ticket.  Waits for room.  With Errors::Report, throws the stream's
  // pending error instead.  A capturing stream adds a node to its graph instead and returns ticket 0.
  template <class T, class FillIn>
  uint64_t push(const char* name, size_t extra, Errors errors, FillIn&& fill);

  // The ticket of all that has been queued so far.
  uint64_t tail() const noexcept { return queue_.tail(); }
  Timeline& timeline() noexcept { return timeline_; }
  bool idle() const noexcept { return timeline_.reached(tail()); }
  // Waits as the host; refused in device code.
  void wait(uint64_t ticket, uint64_t spinNanoseconds = kHostSpinNanoseconds);
  // Waits for a ticket that was just pushed if every launch is to be synchronous.
  void waitIfBlocking(uint64_t ticket);

  // Devices whose memory this stream's commands may use besides what its kernels can reach, since it was
  // opened.
  uint64_t touchedDevices() const noexcept { return touched_.load(std::memory_order_relaxed); }
  void touch(uint64_t devices) noexcept;

  // --- Errors of device code ---

  bool hasError() const noexcept { return (attention_.load(std::memory_order_acquire) & kFailed) != 0; }
  void throwPendingError();
  // Keeps the error unless there is one already; with sticky errors, for all streams of the device.
  void keepError(const AsyncError& error) noexcept;
  void setError(const AsyncError& error) noexcept;
  Execution& execution() noexcept { return execution_; }

  // --- Capture (graph.cpp); the pointer is guarded by the capture lock ---

  bool capturing() const noexcept { return (attention_.load(std::memory_order_acquire) & kCapturing) != 0; }
  std::shared_ptr<Capture> capture;
  void setCapturing(bool capturing) noexcept;

  // --- The end of the process ---

  // Whether the worker is running a command now.
  bool busy() const noexcept { return busy_.load(std::memory_order_seq_cst); }
  // By the worker, around a sleep.  Does not return from setBusy(true) when the process is ending.
  void setBusy(bool busy) noexcept;

 private:
  // Reasons for push() to leave its fast path.
  static constexpr uint32_t kClosed = 1, kNoWorker = 2, kCapturing = 4, kFailed = 8;

  // Called with the lock held; returns whether push() goes on (else it captures), or releases the lock and
  // throws.
  bool attend(Errors errors);
  void startWorker();
  void workerMain() noexcept;
  Command* waitForCommand() noexcept;
  void retire() noexcept;
  void parkIfUnloading() noexcept;
  void wakeWorker() noexcept {
    AsymmetricFence::light();
    if (sleeping_.load(std::memory_order_relaxed) != 0 && sleeping_.exchange(0) != 0) {
      futexWake(sleeping_, 1);
    }
  }
  Command* newNode(size_t bytes);
  void addNode(Command* node);

  // Read by everybody for every command, written rarely; what is written for every command has lines of its
  // own.
  std::atomic<uintptr_t> handle_{0};
  std::atomic<uint32_t> attention_{kClosed | kNoWorker};
  const uint32_t slot_;
  Device& device_;
  const bool isDefault_;
  unsigned flags_ = 0;
  int priority_ = 0;
  std::atomic<uint32_t> sleeping_{0};
  std::atomic<bool> busy_{false};
  std::atomic<AsyncError*> error_{nullptr};
  std::atomic<uint64_t> incarnation_{0};
  std::atomic<uint64_t> touched_{0};

  alignas(kCacheLine) SpinLock lock_; // of the producers
  alignas(kCacheLine) CommandQueue queue_;
  Timeline timeline_;
  alignas(kCacheLine) Execution execution_; // the worker's
};

template <class T, class FillIn>
uint64_t Stream::push(const char* name, size_t extra, Errors errors, FillIn&& fill) {
  const auto write = [&](void* memory) {
    T* const command = new (memory) T; // trivial: leaves the first word, which the worker reads, as it is
    command->kind = T::kKind;
    command->name = name;
    fill(*command);
    return static_cast<Command*>(command);
  };
  const uint16_t cells = cellsFor(sizeof(T) + extra);
  for (;;) {
    lock_.lock();
    if (attention_.load(std::memory_order_acquire) != 0) [[unlikely]] {
      if (!attend(errors)) {
        addNode(write(newNode(sizeof(T) + extra)));
        return 0;
      }
    }
    if (Command* const room = queue_.reserve(cells, timeline_)) [[likely]] {
      const uint64_t ticket = queue_.publish(write(room), cells);
      lock_.unlock();
      wakeWorker();
      return ticket;
    }
    const uint64_t room = queue_.roomAt(cells);
    lock_.unlock();
    wait(room);
  }
}

} // namespace sim
