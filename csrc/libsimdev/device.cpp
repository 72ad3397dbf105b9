// Devices: their streams as a whole, peer access, properties.
#include "device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "address_space.h"
#include "graph.h"
#include "runtime.h"
#include "stream.h"

namespace sim {

Device::Device(int index, const Config& config, const AddressSpace& space)
    : index_(index),
      memoryOffset_(static_cast<ptrdiff_t>(space.offset(index))),
      stickyErrors_(config.stickyErrors),
      reachable_(uint64_t{1} << index),
      memory_({
          .window = space.window(index),
          .windowSize = space.windowSize(),
          .distance = space.offset(index),
          .capacity = config.memoryLimit,
          .alignment = 512,
          .idleLimit = config.idleMemory,
      }),
      pool_(index, config.numThreads) {
  defaultStream_ = new Stream(*this, true);
  defaultStream_->open(simStreamDefault, kLeastPriority);
  streams_.push_back(defaultStream_);
}

bool Device::setPeerAccess(int peer, bool enabled) noexcept {
  const uint64_t bit = uint64_t{1} << peer;
  const uint64_t before = enabled ? reachable_.fetch_or(bit) : reachable_.fetch_and(~bit);
  return ((before & bit) != 0) != enabled;
}

Stream& Device::createStream(unsigned flags, int priority) {
  std::lock_guard lock(mutex_);
  streams_.reserve(streams_.size() + 1);
  closedStreams_.reserve(streams_.size() + closedStreams_.size() + 1); // so that takeBack() need not
  Stream* stream = nullptr;
  if (closedStreams_.empty()) {
    stream = new Stream(*this, false);
  } else {
    stream = closedStreams_.back();
    closedStreams_.pop_back();
  }
  stream->open(flags, std::clamp(priority, kGreatestPriority, kLeastPriority));
  streams_.push_back(stream);
  if (deviceError_ && stickyErrors_) {
    stream->setError(*deviceError_);
  }
  return *stream;
}

void Device::takeBack(Stream& stream) noexcept {
  std::lock_guard lock(mutex_);
  std::erase(streams_, &stream);
  closedStreams_.push_back(&stream);
}

std::vector<Stream*> Device::streams() {
  std::lock_guard lock(mutex_);
  return streams_;
}

void Device::synchronize() {
  std::vector<std::pair<Stream*, uint64_t>> tickets;
  for (Stream* const stream : streams()) {
    tickets.emplace_back(stream, stream->tail());
  }
  for (const auto& [stream, ticket] : tickets) {
    stream->wait(ticket);
  }
  std::optional<AsyncError> error;
  {
    std::lock_guard lock(mutex_);
    error = deviceError_;
    if (!stickyErrors_) {
      deviceError_.reset();
    }
  }
  if (error) {
    throw Failure{error->code, error->detail};
  }
  for (const auto& [stream, ticket] : tickets) {
    stream->throwPendingError();
  }
}

void Device::keepOrphanedError(const AsyncError& error) noexcept {
  std::lock_guard lock(mutex_);
  if (!deviceError_) {
    deviceError_ = error;
  }
}

void Device::failAllStreams(const AsyncError& error) noexcept {
  std::lock_guard lock(mutex_);
  if (!deviceError_) {
    deviceError_ = error;
  }
  for (Stream* const stream : streams_) {
    stream->setError(error);
  }
}

} // namespace sim

using namespace sim;

simError_t simGetDeviceCount(int* count) {
  return api([&] {
    notNull(count, "count");
    *count = 0;
    *count = Runtime::configuration().deviceCount;
  });
}

simError_t simSetDevice(int device) {
  return api([&] {
    checkDevice(device, Runtime::configuration().deviceCount);
    thisThread.device = device;
  });
}

simError_t simGetDevice(int* device) {
  return api([&] { *notNull(device, "device") = thisThread.device; });
}

simError_t simGetDeviceProperties(simDeviceProp* properties, int device) {
  return api([&] {
    notNull(properties, "properties");
    const Config config = Runtime::configuration();
    checkDevice(device, config.deviceCount);
    simDeviceProp result = {};
    snprintf(result.name, sizeof result.name, "Simulated Device");
    memcpy(result.uuid, "simdev device ", 14);
    result.uuid[15] = static_cast<unsigned char>(device);
    result.major = SIM_VERSION / 1000;
    result.minor = SIM_VERSION % 1000 / 10;
    result.totalGlobalMem = config.memoryLimit;
    result.multiProcessorCount = config.numThreads;
    result.maxThreadsPerBlock = 1024;
    std::fill_n(result.maxThreadsDim, 3, 1024);
    result.maxGridSize[0] = INT32_MAX;
    result.maxGridSize[1] = result.maxGridSize[2] = UINT16_MAX;
    result.warpSize = 1;
    result.asyncEngineCount = 1;
    result.concurrentKernels = 1;
    *properties = result;
  });
}

simError_t simDeviceSynchronize() {
  return api([&] {
    Device& device = Runtime::get().currentDevice();
    refuseWhileCapturing(device);
    device.synchronize();
  });
}

simError_t simDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api([&] {
    if (least != nullptr) {
      *least = kLeastPriority;
    }
    if (greatest != nullptr) {
      *greatest = kGreatestPriority;
    }
  });
}

simError_t simDeviceCanAccessPeer(int* canAccess, int device, int peer) {
  return api([&] {
    notNull(canAccess, "canAccess");
    const int count = Runtime::configuration().deviceCount;
    checkDevice(device, count);
    checkDevice(peer, count);
    *canAccess = device != peer;
  });
}

namespace {

void setPeerAccess(int peer, bool enabled, simError_t already) {
  Runtime& runtime = Runtime::get();
  checkDevice(peer, runtime.config().deviceCount);
  Device& device = runtime.currentDevice();
  if (peer == device.index()) {
    fail(simErrorPeerAccessUnsupported, "device %d cannot be its own peer", peer);
  }
  if (!device.setPeerAccess(peer, enabled)) {
    fail(already, "of device %d to device %d", device.index(), peer);
  }
}

} // namespace

simError_t simDeviceEnablePeerAccess(int peer, unsigned flags) {
  return api([&] {
    noFlags(flags);
    setPeerAccess(peer, true, simErrorPeerAccessAlreadyEnabled);
  });
}

simError_t simDeviceDisablePeerAccess(int peer) {
  return api([&] { setPeerAccess(peer, false, simErrorPeerAccessNotEnabled); });
}

simError_t simDeviceGetMemoryOffset(ptrdiff_t* offset, int device) {
  return api([&] { *notNull(offset, "offset") = Runtime::get().device(device).memoryOffset(); });
}

simError_t simDeviceGetMemoryWindow(void** base, size_t* bytes, int device) {
  return api([&] {
    notNull(base, "base");
    notNull(bytes, "bytes");
    const Runtime& runtime = Runtime::get();
    checkDevice(device, runtime.config().deviceCount);
    *base = reinterpret_cast<void*>(runtime.space().window(device));
    *bytes = runtime.space().windowSize();
  });
}

void* simTranslatePointer(int device, const void* pointer) {
  Runtime* const runtime = Runtime::ifStarted();
  const int owner = runtime != nullptr ? runtime->space().deviceOf(pointer) : -1;
  if (owner < 0 || device < 0 || device >= runtime->config().deviceCount ||
      (runtime->devices()[device]->reachable() >> owner & 1) == 0) {
    return nullptr;
  }
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(pointer) + runtime->space().offset(owner));
}
