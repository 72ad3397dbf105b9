// The owner of a driver event, and CUDA's rules about when it may be used.
#include "runtime/event.h"

#include <utility>

namespace simdev {

Event::Event(Event&& other) noexcept
    : timing_(other.timing_),
      device_(std::exchange(other.device_, -1)),
      handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    reset();
    timing_ = other.timing_;
    device_ = std::exchange(other.device_, -1);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void Event::reset() noexcept {
  if (handle_ != nullptr) {
    driver().destroyEvent(std::exchange(handle_, nullptr));
    device_ = -1;
  }
}

void Event::record(const Stream& stream) {
  const StreamHandle streamHandle = stream.handle();
  if (handle_ == nullptr) {
    handle_ = driver().createEvent(stream.device_index(), timing_);
    device_ = stream.device_index();
  }
  TORCH_CHECK(
      device_ == stream.device_index(),
      "Event device ",
      static_cast<int>(device_),
      " does not match recording stream's device ",
      static_cast<int>(stream.device_index()),
      ".");
  driver().recordEvent(handle_, streamHandle);
}

void Event::block(const Stream& stream) const {
  if (isRecorded()) {
    driver().streamWaitEvent(stream.handle(), handle_);
  }
}

bool Event::query() const {
  return !isRecorded() || driver().queryEvent(handle_);
}

void Event::synchronize() const {
  if (isRecorded()) {
    driver().synchronizeEvent(handle_);
  }
}

double Event::elapsedTime(const Event& end) const {
  TORCH_CHECK_VALUE(
      timing_ && end.timing_, "Both events must be created with argument 'enable_timing=True'.");
  TORCH_CHECK_VALUE(
      isRecorded() && end.isRecorded(), "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK(query() && end.query(), "Both events must be completed before calculating elapsed time.");
  return driver().elapsedTime(handle_, end.handle_);
}

} // namespace simdev
