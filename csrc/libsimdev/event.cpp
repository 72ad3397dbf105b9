// Recording, asking and waiting for events.
#include "event.h"

#include <mutex>
#include <utility>

#include "capture.h"
#include "device.h"
#include "error.h"
#include "handle_table.h"
#include "runtime.h"
#include "stream.h"

namespace sim {

namespace {

using EventTable = HandleTable<Event, HandleKind::Event>;

// Events are taken from here and come back; the objects live for ever, in blocks.
constexpr size_t kBlock = 64;
SpinLock freeLock;
Event* freeEvents = nullptr;

Event& takeEvent() {
  std::lock_guard lock(freeLock);
  if (freeEvents == nullptr) {
    static auto* const blocks = new std::vector<std::unique_ptr<Event[]>>;
    const auto& block = blocks->emplace_back(std::make_unique<Event[]>(kBlock));
    for (size_t i = 0; i < kBlock; ++i) {
      block[i].nextFree = std::exchange(freeEvents, &block[i]);
    }
  }
  return *std::exchange(freeEvents, freeEvents->nextFree);
}

void returnEvent(Event& event) noexcept {
  std::lock_guard lock(freeLock);
  event.nextFree = freeEvents;
  freeEvents = &event;
}

void destroy(Event& event) {
  Event::Record forgotten; // freed after the lock
  bool unused = false;
  {
    std::lock_guard lock(event.lock);
    if (event.handle.exchange(0) == 0) {
      fail(simErrorInvalidResourceHandle, "the event has been destroyed");
    }
    std::swap(forgotten, event.latest);
    ++event.generation; // stamps still to come are of no interest
    unused = event.pendingStamps == 0;
  }
  if (unused) {
    returnEvent(event); // else the last stamp does it
  }
}

void record(Event& event, Stream& stream) {
  if (&stream.device() != event.device) {
    fail(
        simErrorInvalidResourceHandle,
        "an event of device %d recorded on a stream of device %d",
        event.device->index(),
        stream.device().index());
  }
  Event::Record record;
  if (stream.capturing()) {
    record = Capture::record(stream);
    std::lock_guard lock(event.lock);
    ++event.generation;
    std::swap(event.latest, record);
    return;
  }
  record.stream = &stream;
  record.incarnation = stream.incarnation();
  uint64_t generation = 0;
  {
    std::lock_guard lock(event.lock);
    generation = ++event.generation;
    event.pendingStamps += event.timed();
  }
  if (!event.timed()) {
    record.ticket = stream.tail();
  } else {
    try {
      record.ticket =
          stream.push<StampCommand>(nullptr, 0, Stream::Errors::Ignore, [&](StampCommand& command) {
            command.event = &event;
            command.generation = generation;
          });
    } catch (...) {
      std::lock_guard lock(event.lock);
      --event.pendingStamps;
      throw;
    }
  }
  std::lock_guard lock(event.lock);
  if (event.generation == generation) {
    std::swap(event.latest, record);
  }
}

// Asking or waiting for something that only happens when a graph is launched spoils the capture it is part
// of.
void refuseCaptured(const Event::Record& record) {
  if (record.capture) {
    std::lock_guard lock(Capture::mutex());
    if (!record.capture->ended()) {
      record.capture->invalidate();
    }
    fail(simErrorCapturedEvent);
  }
}

bool complete(const Event::Record& record) {
  return record.stream == nullptr || record.stream->timeline().reached(record.ticket);
}

uint64_t timestamp(Event& event) {
  if (!event.timed()) {
    fail(simErrorInvalidResourceHandle, "the event was created without timing");
  }
  const Event::Record record = event.record();
  refuseCaptured(record);
  if (record.stream == nullptr) {
    fail(simErrorInvalidResourceHandle, "the event was never recorded");
  }
  std::lock_guard lock(event.lock);
  return event.stampedGeneration == event.generation && complete(record) ? event.timestamp : 0;
}

} // namespace

Event::Event() : slot(EventTable::add(this)) {}

Event& Event::of(simEvent_t handle) {
  Runtime::get();
  Event* const event = EventTable::find(handle);
  if (event == nullptr ||
      event->handle.load(std::memory_order_acquire) != reinterpret_cast<uintptr_t>(handle)) {
    fail(simErrorInvalidResourceHandle, "not an event, or one that has been destroyed");
  }
  return *event;
}

Event::Record Event::record() {
  std::lock_guard guard(lock);
  return latest;
}

void Event::stamp(uint64_t which) noexcept {
  bool unused = false;
  {
    std::lock_guard guard(lock);
    if (generation == which) {
      timestamp = nowNanoseconds();
      stampedGeneration = which;
    }
    unused = --pendingStamps == 0 && handle.load(std::memory_order_relaxed) == 0;
  }
  if (unused) {
    returnEvent(*this);
  }
}

} // namespace sim

using namespace sim;

simError_t simEventCreate(simEvent_t* event) {
  return simEventCreateWithFlags(event, simEventDefault);
}

simError_t simEventCreateWithFlags(simEvent_t* handle, unsigned flags) {
  return api([&] {
    notNull(handle, "event");
    if ((flags & ~(simEventBlockingSync | simEventDisableTiming)) != 0) {
      fail(simErrorInvalidValue, "unknown event flags %u", flags);
    }
    Device& device = Runtime::get().currentDevice();
    Event& event = takeEvent();
    std::lock_guard lock(event.lock);
    event.flags = flags;
    event.device = &device;
    event.handle.store(EventTable::handle(event.slot, ++event.lives), std::memory_order_release);
    *handle = reinterpret_cast<simEvent_t>(event.handle.load(std::memory_order_relaxed));
  });
}

simError_t simEventDestroy(simEvent_t event) {
  return api([&] { destroy(Event::of(event)); });
}

simError_t simEventRecord(simEvent_t event, simStream_t stream) {
  return api([&] { record(Event::of(event), Stream::of(stream)); });
}

simError_t simEventQuery(simEvent_t event) {
  return api([&] {
    const Event::Record record = Event::of(event).record();
    refuseCaptured(record);
    return complete(record) ? simSuccess : simErrorNotReady;
  });
}

simError_t simEventSynchronize(simEvent_t handle) {
  return api([&] {
    Event& event = Event::of(handle);
    const Event::Record record = event.record();
    refuseCaptured(record);
    if (record.stream == nullptr) {
      return;
    }
    record.stream->wait(record.ticket, (event.flags & simEventBlockingSync) != 0 ? 0 : kHostSpinNanoseconds);
    if (record.stream->incarnation() == record.incarnation) {
      record.stream->throwPendingError();
    }
  });
}

simError_t simStreamWaitEvent(simStream_t handle, simEvent_t event, unsigned flags) {
  return api([&] {
    noFlags(flags);
    Stream& stream = Stream::of(handle);
    const Event::Record record = Event::of(event).record();
    if (record.stream == nullptr) {
      return;
    }
    if (record.capture || stream.capturing()) [[unlikely]] {
      Capture::wait(stream, record);
    } else if (record.stream != &stream && !complete(record)) {
      stream.push<WaitCommand>(nullptr, 0, Stream::Errors::Ignore, [&](WaitCommand& command) {
        command.timeline = &record.stream->timeline();
        command.ticket = record.ticket;
      });
    }
  });
}

simError_t simEventGetTimestamp(uint64_t* nanoseconds, simEvent_t event) {
  return api([&] {
    notNull(nanoseconds, "nanoseconds");
    const uint64_t time = timestamp(Event::of(event));
    if (time == 0) {
      return simErrorNotReady;
    }
    *nanoseconds = time;
    return simSuccess;
  });
}

simError_t simEventElapsedTime(float* milliseconds, simEvent_t start, simEvent_t end) {
  return api([&] {
    notNull(milliseconds, "milliseconds");
    Event &first = Event::of(start), &second = Event::of(end);
    if (first.device != second.device) {
      fail(simErrorInvalidResourceHandle, "the events are of different devices");
    }
    const uint64_t from = timestamp(first), to = timestamp(second);
    if (from == 0 || to == 0) {
      return simErrorNotReady;
    }
    *milliseconds = static_cast<float>(static_cast<double>(static_cast<int64_t>(to - from)) * 1e-6);
    return simSuccess;
  });
}
