// Streams: c10's stream identifiers and the driver's handles behind them.
//
// Lives here: the default stream, the pools that torch.Stream() draws from, wrapped external streams and each
// thread's current stream per device.  Does not live here: the queues themselves (the driver's business).
//
// A stream's id says what it is: 0 is the device's default stream, an odd id is a pool stream (index and
// priority level packed above the lowest bit), any other id is the native handle of an external stream.
// Under a delegate driver ids are the delegate's, of the same form, and its current stream is the current
// one.
#pragma once

#include "driver/driver.h"
#include "runtime/device.h"

#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <array>
#include <utility>

namespace simdev {

// A c10::Stream that is known to be one of ours.
class Stream {
 public:
  explicit Stream(c10::Stream stream) : stream_(stream) {
    TORCH_CHECK(
        stream.device_type() == kDeviceType,
        "Expected a stream of ",
        kDeviceType,
        ", but got one of ",
        stream.device_type());
  }

  c10::Stream unwrap() const noexcept { return stream_; }
  operator c10::Stream() const noexcept { return stream_; }
  c10::StreamId id() const noexcept { return stream_.id(); }
  c10::Device device() const noexcept { return stream_.device(); }
  c10::DeviceIndex device_index() const noexcept { return stream_.device_index(); }
  bool operator==(const Stream& other) const noexcept { return stream_ == other.stream_; }

  // The driver's stream; starts the device if this is its first use.
  StreamHandle handle() const;
  // What the chip's SDK calls it; the same, except under a delegate driver.
  void* nativeHandle() const;
  bool isDefault() const noexcept { return id() == 0; }
  bool isExternal() const noexcept { return id() != 0 && (id() & 1) == 0; }
  bool query() const;
  void synchronize() const;
  bool isCapturing() const;
  // 0 for the default stream and for external streams, whose priority the driver does not tell.
  int priority() const;

 private:
  c10::Stream stream_;
};

// {least, greatest}; smaller is more urgent.  Initialises nothing.
std::pair<int, int> streamPriorityRange();

// -1 stands for the current device in all of these.
Stream getDefaultStream(c10::DeviceIndex device = -1);
Stream getCurrentStream(c10::DeviceIndex device = -1);
// The next stream of the pool of that priority, which is clamped to the range.  A pool has 32 streams, made
// when they are first drawn and never destroyed; the 33rd draw returns the first again.
Stream getStreamFromPool(int priority = 0, c10::DeviceIndex device = -1);
// Wraps a stream made by the chip's own SDK.  The caller keeps it alive.
Stream getStreamFromExternal(StreamHandle handle, c10::DeviceIndex device = -1);

// Changes the calling thread's current stream of that device, not its current device.  Returns the previous.
Stream exchangeCurrentStream(Stream stream);
inline void setCurrentStream(Stream stream) {
  exchangeCurrentStream(stream);
}

namespace detail {
// handle == nullptr: nothing was set in this thread yet, the default stream is current.
struct CurrentStream {
  c10::StreamId id = 0;
  StreamHandle handle = nullptr;
};
extern constinit thread_local std::array<CurrentStream, kMaxDevices> currentStreams;
StreamHandle resolveCurrentStreamHandle(c10::DeviceIndex device);
} // namespace detail

// The driver's handle of the current stream, for the launch path: two loads and no lock.  `device` must be
// valid.
inline StreamHandle currentStreamHandle(c10::DeviceIndex device) {
  StreamHandle handle = detail::currentStreams[static_cast<size_t>(device)].handle;
  return C10_LIKELY(handle != nullptr) ? handle : detail::resolveCurrentStreamHandle(device);
}

// Restores the thread's current stream of the given stream's device.
class StreamGuard {
 public:
  explicit StreamGuard(Stream stream) : previous_(exchangeCurrentStream(stream)) {}
  ~StreamGuard() { setCurrentStream(previous_); }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

} // namespace simdev
