// Events: markers in a stream.
//
// A record is a (stream, ticket) pair.  Only events with timing put something into the queue, a command that
// takes the time; recording one without timing is a note of how far the stream will have got.  Event objects
// are never freed but used again, so a handle that was destroyed can be told from a live one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "futex.h"
#include "simdev.h"

namespace sim {

class Capture;
class Device;
class Stream;

struct Event {
  static Event& of(simEvent_t handle);
  Event();

  bool timed() const noexcept { return (flags & simEventDisableTiming) == 0; }
  // By the stream's worker: this record has happened now.
  void stamp(uint64_t generation) noexcept;

  // What the latest record stands for.
  struct Record {
    Stream* stream = nullptr; // null: never recorded
    uint64_t ticket = 0;
    uint64_t incarnation = 0;
    std::shared_ptr<Capture> capture; // of a record on a capturing stream, with the nodes before it
    std::vector<uint32_t> nodes;
  };
  Record record();

  SpinLock lock; // of all below
  std::atomic<uintptr_t> handle{0}; // 0 while destroyed
  const uint32_t slot;
  uint64_t lives = 0;
  unsigned flags = 0;
  Device* device = nullptr;
  Record latest;
  uint64_t generation = 0; // of the latest record, counted over all lives of the object
  uint64_t stampedGeneration = 0;
  uint64_t timestamp = 0; // nanoseconds, of stampedGeneration
  unsigned pendingStamps = 0; // commands in queues that point here
  Event* nextFree = nullptr;
};

} // namespace sim
