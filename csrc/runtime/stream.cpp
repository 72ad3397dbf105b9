// The per-device stream tables and the thread's current streams.
#include "runtime/stream.h"

#include "runtime/delegate.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

namespace simdev {

namespace detail {
constinit thread_local std::array<CurrentStream, kMaxDevices> currentStreams{};
} // namespace detail

namespace {

constexpr int kStreamsPerPool = 32;
// Priority levels told apart, from the least urgent on; CUDA's runtime in PyTorch has as many.
constexpr int kMaxPriorityLevels = 4;

// One device's streams.  Made at the device's first use and never destroyed: ids stay valid until the process
// ends.
struct DeviceStreams {
  explicit DeviceStreams(c10::DeviceIndex device) : defaultStream(driver().defaultStream(device)) {}

  StreamHandle defaultStream;
  std::array<std::array<std::atomic<StreamHandle>, kStreamsPerPool>, kMaxPriorityLevels> pools{};
  std::array<std::atomic<uint32_t>, kMaxPriorityLevels> nextInPool{};
};

std::array<std::atomic<DeviceStreams*>, kMaxDevices> deviceStreams{};
std::mutex creationMutex;

DeviceStreams& streamsOf(c10::DeviceIndex device) {
  lazyInit();
  checkDeviceIndex(device);
  auto& slot = deviceStreams[device];
  DeviceStreams* streams = slot.load(std::memory_order_acquire);
  if (C10_LIKELY(streams != nullptr)) {
    return *streams;
  }
  std::lock_guard<std::mutex> lock(creationMutex);
  streams = slot.load(std::memory_order_relaxed);
  if (streams == nullptr) {
    streams = new DeviceStreams(device);
    slot.store(streams, std::memory_order_release);
    detail::deviceUsed[device].store(true, std::memory_order_release);
  }
  return *streams;
}

// A pool stream's id: lowest bit 1, then the index in its pool, then the priority level.
struct PoolSlot {
  int level;
  int index;
};

c10::StreamId packPoolId(PoolSlot slot) {
  return (static_cast<c10::StreamId>(slot.level) * kStreamsPerPool + slot.index) << 1 | 1;
}

PoolSlot unpackPoolId(c10::StreamId id) {
  const c10::StreamId number = id >> 1;
  TORCH_CHECK(
      number >= 0 && number < kMaxPriorityLevels * kStreamsPerPool, "simdev has no stream with the id ", id);
  return {static_cast<int>(number / kStreamsPerPool), static_cast<int>(number % kStreamsPerPool)};
}

StreamHandle poolHandle(c10::DeviceIndex device, PoolSlot slot) {
  auto& handle = streamsOf(device).pools[slot.level][slot.index];
  StreamHandle result = handle.load(std::memory_order_acquire);
  if (result == nullptr) {
    std::lock_guard<std::mutex> lock(creationMutex);
    result = handle.load(std::memory_order_relaxed);
    if (result == nullptr) {
      result = driver().createStream(device, streamPriorityRange().first - slot.level);
      handle.store(result, std::memory_order_release);
    }
  }
  return result;
}

Stream makeStream(c10::DeviceIndex device, c10::StreamId id) {
  return Stream(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id));
}

} // namespace

std::pair<int, int> streamPriorityRange() {
  const auto [least, greatest] = driver().streamPriorityRange();
  return {least, std::max(greatest, least - kMaxPriorityLevels + 1)};
}

StreamHandle Stream::handle() const {
  lazyInit();
  if (DelegateDriver* delegate = activeDelegate()) {
    detail::deviceUsed[device_index()].store(true, std::memory_order_relaxed);
    return delegate->streamHandle(stream_);
  }
  if (isDefault()) {
    return streamsOf(device_index()).defaultStream;
  }
  if (isExternal()) {
    lazyInit();
    return reinterpret_cast<StreamHandle>(id());
  }
  return poolHandle(device_index(), unpackPoolId(id()));
}

void* Stream::nativeHandle() const {
  const StreamHandle own = handle(); // starts the runtime
  DelegateDriver* delegate = activeDelegate();
  return delegate == nullptr ? own
                             : delegate->nativeStreamHandle(delegate->delegateStream(device_index(), id()));
}

bool Stream::query() const {
  return driver().queryStream(handle());
}

void Stream::synchronize() const {
  driver().synchronizeStream(handle());
}

bool Stream::isCapturing() const {
  // A device that was never used has nothing to capture; asking must not start it.
  return (isDeviceUsed(device_index()) || activeDelegate() != nullptr) &&
         driver().captureInfo(handle()).status != CaptureStatus::None;
}

int Stream::priority() const {
  if (DelegateDriver* delegate = activeDelegate()) {
    return delegate->streamPriority(stream_);
  }
  return isDefault() || isExternal() ? 0 : streamPriorityRange().first - unpackPoolId(id()).level;
}

Stream getDefaultStream(c10::DeviceIndex device) {
  return makeStream(resolveDeviceIndex(device), 0);
}

Stream getCurrentStream(c10::DeviceIndex device) {
  device = resolveDeviceIndex(device);
  if (DelegateDriver* delegate = activeDelegate()) {
    return makeStream(device, delegate->guard().getStream(delegate->guardDevice(device)).id());
  }
  return makeStream(device, detail::currentStreams[device].id);
}

Stream getStreamFromPool(int priority, c10::DeviceIndex device) {
  device = resolveDeviceIndex(device);
  const auto [least, greatest] = streamPriorityRange();
  lazyInit();
  if (DelegateDriver* delegate = activeDelegate()) {
    return makeStream(device, delegate->createStreamId(device, std::clamp(priority, greatest, least)));
  }
  const int level = least - std::clamp(priority, greatest, least);
  const uint32_t drawn = streamsOf(device).nextInPool[level].fetch_add(1, std::memory_order_relaxed);
  const PoolSlot slot{level, static_cast<int>(drawn % kStreamsPerPool)};
  poolHandle(device, slot);
  return makeStream(device, packPoolId(slot));
}

Stream getStreamFromExternal(StreamHandle handle, c10::DeviceIndex device) {
  const auto id = reinterpret_cast<c10::StreamId>(handle);
  lazyInit();
  if (handle == nullptr && activeDelegate() != nullptr) { // CUDA's default stream is the null stream
    return getDefaultStream(device);
  }
  TORCH_CHECK_VALUE(
      id != 0 && (id & 1) == 0,
      "An external stream's native handle must be an even, non-null address, but is ",
      handle);
  device = resolveDeviceIndex(device);
  if (activeDelegate() == nullptr && handle == streamsOf(device).defaultStream) {
    return makeStream(device, 0);
  }
  return makeStream(device, id);
}

Stream exchangeCurrentStream(Stream stream) {
  const c10::DeviceIndex device = stream.device_index();
  if (!stream.isDefault()) {
    lazyInit();
  }
  if (DelegateDriver* delegate = activeDelegate()) {
    const c10::Stream next = delegate->delegateStream(device, stream.id());
    return makeStream(device, delegate->guard().exchangeStream(next).id());
  }
  const Stream previous = getCurrentStream(device);
  // The default stream's handle is looked up when it is needed, so that restoring it initialises nothing.
  detail::currentStreams[device] = {
      stream.id(), stream.isDefault() && !isDeviceUsed(device) ? nullptr : stream.handle()};
  return previous;
}

namespace detail {

StreamHandle resolveCurrentStreamHandle(c10::DeviceIndex device) {
  lazyInit();
  if (activeDelegate() != nullptr) {
    return getCurrentStream(device).handle(); // may change behind our back: not remembered
  }
  CurrentStream& current = currentStreams[device];
  current.handle = makeStream(device, current.id).handle();
  return current.handle;
}

} // namespace detail

} // namespace simdev
