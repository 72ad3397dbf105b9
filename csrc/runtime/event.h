// Events for the runtime's own use (allocators, graphs, bindings), with CUDA's rules.
//
// Lives here: a movable owner of one driver event, created at its first record on that stream's device.  Does
// not live here: torch.Event, which PyTorch builds over the device guard (guard.cpp).
#pragma once

#include "driver/driver.h"
#include "runtime/stream.h"

namespace simdev {

class Event {
 public:
  explicit Event(bool timing = false) noexcept : timing_(timing) {}
  ~Event() { reset(); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  bool isRecorded() const noexcept { return handle_ != nullptr; }
  // -1 until recorded.
  c10::DeviceIndex device_index() const noexcept { return device_; }
  EventHandle handle() const noexcept { return handle_; }

  // An event stays on the device of its first record; a stream of another device throws.
  void record(const Stream& stream);
  // Later work of `stream` (of any device) waits.  Does nothing before the first record.
  void block(const Stream& stream) const;
  // True before the first record.
  bool query() const;
  void synchronize() const;
  // Milliseconds from this event to `end`.  Both must be timing events, recorded and complete.
  double elapsedTime(const Event& end) const;

 private:
  void reset() noexcept;

  bool timing_;
  c10::DeviceIndex device_ = -1;
  EventHandle handle_ = nullptr;
};

} // namespace simdev
