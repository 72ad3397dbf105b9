// Allocating and freeing device and page-locked host memory.
#include <utility>
#include <vector>

#include "capture.h"
#include "error.h"
#include "runtime.h"
#include "stream.h"
#include "thread_state.h"

namespace sim {

namespace {

void* allocate(Arena& arena, size_t bytes, const char* what) {
  void* const pointer = arena.allocate(bytes);
  if (pointer == nullptr) {
    fail(
        simErrorMemoryAllocation,
        "%zu bytes asked for, %zu of %zu bytes of %s are free",
        bytes,
        arena.freeBytes(),
        arena.capacity(),
        what);
  }
  return pointer;
}

// The devices whose memory the stream's work can touch.
uint64_t devicesUsedBy(const Runtime& runtime, const Stream& stream) {
  const uint64_t own = stream.touchedDevices() | stream.device().mask();
  uint64_t all = own;
  for (const auto& device : runtime.devices()) {
    if ((own & device->mask()) != 0) {
      all |= device->reachable();
    }
  }
  return all;
}

// Waits for what is queued now on every stream that can touch one of the devices.
void waitForUsers(const Runtime& runtime, uint64_t devices) {
  std::vector<std::pair<Stream*, uint64_t>> tickets;
  for (const auto& device : runtime.devices()) {
    for (Stream* const stream : device->streams()) {
      if (!stream->idle() && (devicesUsedBy(runtime, *stream) & devices) != 0) {
        tickets.emplace_back(stream, stream->tail());
      }
    }
  }
  for (const auto& [stream, ticket] : tickets) {
    stream->wait(ticket);
  }
}

void release(void* pointer, bool onHost) {
  Runtime& runtime = Runtime::get();
  if (pointer == nullptr) {
    return;
  }
  refuseUnsafeCall();
  if (thisThread.execution != nullptr) {
    fail(simErrorNotPermitted, "device code would wait for streams");
  }
  Arena* const arena = runtime.arenaOf(pointer);
  if (arena == nullptr || (arena == &runtime.hostMemory()) != onHost) {
    fail(simErrorInvalidValue, "%p is no %s memory", pointer, onHost ? "page-locked host" : "device");
  }
  const std::optional<Allocation> allocation = arena->forget(pointer);
  if (!allocation) {
    fail(simErrorInvalidValue, "no live allocation starts at %p", pointer);
  }
  waitForUsers(runtime, onHost ? ~uint64_t{0} : uint64_t{1} << runtime.space().deviceOf(pointer));
  arena->giveBack(*allocation);
}

} // namespace

} // namespace sim

using namespace sim;

simError_t simMalloc(void** pointer, size_t bytes) {
  return api([&] {
    notNull(pointer, "pointer");
    Device& device = Runtime::get().currentDevice();
    refuseUnsafeCall();
    *pointer = bytes == 0 ? nullptr : allocate(device.memory(), bytes, "device memory");
  });
}

simError_t simFree(void* pointer) {
  return api([&] { release(pointer, false); });
}

simError_t simMallocHost(void** pointer, size_t bytes) {
  return api([&] {
    notNull(pointer, "pointer");
    Arena& arena = Runtime::get().hostMemory();
    refuseUnsafeCall();
    *pointer = bytes == 0 ? nullptr : allocate(arena, bytes, "page-locked host memory");
  });
}

simError_t simFreeHost(void* pointer) {
  return api([&] { release(pointer, true); });
}

simError_t simMemGetInfo(size_t* freeBytes, size_t* totalBytes) {
  return api([&] {
    notNull(freeBytes, "freeBytes");
    notNull(totalBytes, "totalBytes");
    Arena& memory = Runtime::get().currentDevice().memory();
    *freeBytes = memory.freeBytes();
    *totalBytes = memory.capacity();
  });
}

simError_t simPointerGetAttributes(simPointerAttributes* attributes, const void* pointer) {
  return api([&] {
    notNull(attributes, "attributes");
    *attributes = {simMemoryTypeUnregistered, -1, nullptr, 0};
    Runtime* const runtime = Runtime::ifStarted();
    Arena* const arena = runtime != nullptr ? runtime->arenaOf(pointer) : nullptr;
    const auto allocation = arena != nullptr ? arena->find(pointer) : std::nullopt;
    if (allocation) {
      const int device = runtime->space().deviceOf(pointer);
      *attributes = {
          device >= 0 ? simMemoryTypeDevice : simMemoryTypeHost,
          device,
          reinterpret_cast<void*>(allocation->base),
          allocation->size};
    }
  });
}
