// The worker of a stream, and the slow paths of handing work to it.
#include "stream.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "device.h"
#include "graph.h"
#include "runtime.h"
#include "spinning.h"
#include "team.h"
#include "worker_thread.h"

namespace sim {

namespace {

// A worker that has run out of work looks for more this long before it sleeps: longer than the host usually
// takes between two operators, short enough not to show up as a busy CPU.
constexpr uint64_t kWorkerSpinNanoseconds = 50'000;

} // namespace

using StreamTable = HandleTable<Stream, HandleKind::Stream>;

Stream::Stream(Device& device, bool isDefault)
    : slot_(StreamTable::add(this)), device_(device), isDefault_(isDefault) {}

void Stream::open(unsigned flags, int priority) noexcept {
  flags_ = flags;
  priority_ = priority;
  touched_.store(0, std::memory_order_relaxed);
  const uint64_t life = incarnation_.fetch_add(1, std::memory_order_release) + 1;
  handle_.store(StreamTable::handle(slot_, life), std::memory_order_relaxed);
  attention_.store(kNoWorker, std::memory_order_release);
}

Stream& Stream::of(simStream_t handle) {
  Runtime& runtime = Runtime::get();
  if (handle == nullptr) {
    return runtime.currentDevice().defaultStream();
  }
  Stream* const stream = StreamTable::find(handle);
  if (stream == nullptr || stream->handle() != handle ||
      (stream->attention_.load(std::memory_order_acquire) & kClosed) != 0) {
    fail(simErrorInvalidResourceHandle, "not a stream, or one that has been destroyed");
  }
  return *stream;
}

void Stream::close() {
  if (isDefault_) {
    fail(simErrorInvalidResourceHandle, "a device's default stream is not to be destroyed");
  }
  lock_.lock();
  if (attention_.load(std::memory_order_acquire) == kNoWorker) {
    attention_.fetch_or(kClosed, std::memory_order_release);
    lock_.unlock();
    retire();
    return;
  }
  lock_.unlock();
  if (capturing()) {
    fail(simErrorStreamCaptureUnsupported, "the stream is capturing");
  }
  push<RetireCommand>(nullptr, 0, Errors::Ignore, [&](RetireCommand&) {
    attention_.fetch_or(kClosed, std::memory_order_release);
  });
}

bool Stream::attend(Errors errors) {
  try {
    uint32_t attention = attention_.load(std::memory_order_acquire);
    if ((attention & kClosed) != 0) {
      fail(simErrorInvalidResourceHandle, "the stream has been destroyed");
    }
    if ((attention & kCapturing) != 0) {
      lock_.unlock();
      return false;
    }
    if ((attention & kFailed) != 0 && errors == Errors::Report) {
      throwPendingError();
    }
    if ((attention & kNoWorker) != 0) {
      startWorker();
      attention_.fetch_and(~kNoWorker, std::memory_order_release);
    }
    return true;
  } catch (...) {
    lock_.unlock();
    throw;
  }
}

void Stream::startWorker() {
  if (!queue_.allocated()) {
    queue_.allocate();
  }
  char name[32];
  snprintf(name, sizeof name, "sim%d:stream", device_.index());
  busy_.store(true, std::memory_order_seq_cst);
  try {
    startThread(name, [this] { workerMain(); });
  } catch (...) {
    busy_.store(false, std::memory_order_seq_cst);
    throw;
  }
}

void Stream::workerMain() noexcept {
  for (;;) {
    Command* command = queue_.front();
    if (command == nullptr) [[unlikely]] {
      command = waitForCommand();
    }
    parkIfUnloading();
    const bool last = command->kind == CommandKind::Retire;
    // With sticky errors, a device that has failed runs nothing more; its events still complete.
    const bool drop = hasError() && device_.stickyErrors() && command->kind != CommandKind::Wait &&
                      command->kind != CommandKind::Stamp;
    if (!drop) [[likely]] {
      execute(*command, *this, device_, *this);
    }
    dispose(*command);
    timeline_.advance(queue_.pop());
    if (last) {
      retire(); // from here on the object may be somebody else's
      return;
    }
  }
}

Command* Stream::waitForCommand() noexcept {
  for (;;) {
    Spinning::until(
        kWorkerSpinNanoseconds, 0, [&] { return queue_.front(std::memory_order_relaxed) != nullptr; });
    Command* command = queue_.front();
    if (command != nullptr) {
      return command;
    }
    uint64_t patience = Team::prepareToSleep();
    // The producer publishes and then reads sleeping_; here it is the other way round, so one of the two
    // notices.
    sleeping_.store(1, std::memory_order_relaxed);
    AsymmetricFence::heavy();
    command = queue_.front();
    if (command == nullptr) {
      while (sleeping_.load(std::memory_order_acquire) != 0) {
        setBusy(false);
        const bool woken = futexWait(sleeping_, 1, patience);
        setBusy(true);
        if (!woken) {
          patience = Team::prepareToSleep();
        }
      }
    } else {
      sleeping_.store(0, std::memory_order_relaxed);
      return command;
    }
  }
}

void Stream::setBusy(bool busy) noexcept {
  busy_.store(busy, std::memory_order_seq_cst);
  if (busy) {
    parkIfUnloading();
  }
}

void Stream::parkIfUnloading() noexcept {
  if (Runtime::unloading()) [[unlikely]] {
    busy_.store(false, std::memory_order_seq_cst);
    for (;;) {
      pause(); // the process is about to end, and what the next command needs may be gone
    }
  }
}

void Stream::retire() noexcept {
  if (AsyncError* const error = error_.exchange(nullptr)) {
    device_.keepOrphanedError(std::move(*error));
    delete error;
  }
  busy_.store(false, std::memory_order_seq_cst);
  device_.takeBack(*this);
}

void Stream::wait(uint64_t ticket, uint64_t spinNanoseconds) {
  if (timeline_.reached(ticket)) {
    return;
  }
  if (thisThread.execution != nullptr) {
    fail(simErrorNotPermitted, "device code would wait for a stream");
  }
  timeline_.wait(ticket, spinNanoseconds);
}

void Stream::waitIfBlocking(uint64_t ticket) {
  if (Runtime::get().config().launchBlocking && ticket != 0 && thisThread.execution == nullptr) [[unlikely]] {
    wait(ticket);
    throwPendingError();
  }
}

void Stream::touch(uint64_t devices) noexcept {
  if ((devices & ~touched_.load(std::memory_order_relaxed)) != 0) {
    touched_.fetch_or(devices, std::memory_order_relaxed);
  }
}

void Stream::throwPendingError() {
  if (!hasError()) {
    return;
  }
  if (device_.stickyErrors()) {
    const AsyncError& error = *error_.load(std::memory_order_acquire); // set once and never freed
    throw Failure{error.code, error.detail};
  }
  attention_.fetch_and(~kFailed, std::memory_order_acq_rel);
  if (AsyncError* const error = error_.exchange(nullptr)) {
    Failure failure{error->code, std::move(error->detail)};
    delete error;
    throw failure;
  }
}

void Stream::keepError(const AsyncError& error) noexcept {
  if (device_.stickyErrors()) {
    device_.failAllStreams(error);
  } else {
    setError(error);
  }
}

void Stream::setError(const AsyncError& error) noexcept {
  auto* const kept = new (std::nothrow) AsyncError(error);
  AsyncError* none = nullptr;
  if (kept == nullptr || !error_.compare_exchange_strong(none, kept)) {
    delete kept;
    return;
  }
  attention_.fetch_or(kFailed, std::memory_order_release);
}

void Stream::setCapturing(bool capturing) noexcept {
  if (capturing) {
    attention_.fetch_or(kCapturing, std::memory_order_acq_rel);
  } else {
    attention_.fetch_and(~kCapturing, std::memory_order_acq_rel);
  }
}

} // namespace sim

using namespace sim;

simError_t simStreamCreate(simStream_t* stream) {
  return simStreamCreateWithPriority(stream, simStreamDefault, 0);
}

simError_t simStreamCreateWithFlags(simStream_t* stream, unsigned flags) {
  return simStreamCreateWithPriority(stream, flags, 0);
}

simError_t simStreamCreateWithPriority(simStream_t* stream, unsigned flags, int priority) {
  return api([&] {
    notNull(stream, "stream");
    if (flags > simStreamNonBlocking) {
      fail(simErrorInvalidValue, "unknown stream flags %u", flags);
    }
    *stream = Runtime::get().currentDevice().createStream(flags, priority).handle();
  });
}

simError_t simStreamDestroy(simStream_t stream) {
  return api([&] {
    if (stream == nullptr) {
      fail(simErrorInvalidResourceHandle, "a device's default stream is not to be destroyed");
    }
    Stream::of(stream).close();
  });
}

simError_t simDeviceGetDefaultStream(simStream_t* stream, int device) {
  return api([&] { *notNull(stream, "stream") = Runtime::get().device(device).defaultStream().handle(); });
}

simError_t simStreamGetDevice(simStream_t stream, int* device) {
  return api([&] { *notNull(device, "device") = Stream::of(stream).device().index(); });
}

simError_t simStreamGetPriority(simStream_t stream, int* priority) {
  return api([&] { *notNull(priority, "priority") = Stream::of(stream).priority(); });
}

simError_t simStreamGetFlags(simStream_t stream, unsigned* flags) {
  return api([&] { *notNull(flags, "flags") = Stream::of(stream).flags(); });
}

simError_t simStreamQuery(simStream_t handle) {
  return api([&] {
    Stream& stream = Stream::of(handle);
    refuseWhileCapturing(stream);
    if (!stream.idle()) {
      return simErrorNotReady;
    }
    stream.throwPendingError();
    return simSuccess;
  });
}

simError_t simStreamSynchronize(simStream_t handle) {
  return api([&] {
    Stream& stream = Stream::of(handle);
    refuseWhileCapturing(stream);
    stream.wait(stream.tail());
    stream.throwPendingError();
  });
}
