// The allocator of pinned host memory: PyTorch's caching host allocator over the driver.
//
// Lives here: what it needs from the device (memory, events, streams), and its registration, under which
// tensor.pin_memory(), DataLoader and torch.accelerator.empty_host_cache() find it.  Does not live here: the cache itself
// (ATen), and who records copies in it (csrc/aten/copy.cpp).
#include "driver/driver.h"
#include "runtime/device.h"
#include "runtime/stream.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

namespace simdev {

namespace {

struct EventDeleter {
  void operator()(void* event) const noexcept { driver().destroyEvent(event); }
};
// A null event stands for work known to be done.
using HostEvent = std::unique_ptr<void, EventDeleter>;

int64_t microsecondsSince(std::chrono::steady_clock::time_point start) {
  using namespace std::chrono;
  return duration_cast<microseconds>(steady_clock::now() - start).count();
}

struct HostAllocatorImpl final : at::CachingHostAllocatorImpl<c10::Stream, HostEvent> {
  using Block = at::HostBlock<c10::Stream>;

  void allocate_host_memory(size_t size, void** pointer) override {
    lazyInit();
    const auto start = std::chrono::steady_clock::now();
    *pointer = driver().allocateHost(size);
    if (*pointer == nullptr) {
      this->empty_cache();
      *pointer = driver().allocateHost(size);
    }
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        *pointer != nullptr,
        "simdev: out of pinned host memory. Tried to allocate ",
        c10::CachingAllocator::format_size(size));
    std::lock_guard<std::mutex> lock(stats_.timing_mutex_);
    stats_.host_alloc_time.increase(microsecondsSince(start));
  }

  void free_block(Block* block) override {
    const auto start = std::chrono::steady_clock::now();
    driver().deallocateHost(block->ptr_);
    std::lock_guard<std::mutex> lock(stats_.timing_mutex_);
    stats_.host_free_time.increase(microsecondsSince(start));
  }

  // Called when a tensor is freed: it must not throw, and a use without an event would keep the block for ever.
  void record_stream(std::optional<std::vector<HostEvent>>& events, c10::Stream stream) override {
    HostEvent event;
    try {
      const StreamHandle handle = Stream(stream).handle();
      try {
        event.reset(driver().createEvent(stream.device_index(), /*timing=*/false));
        driver().recordEvent(event.get(), handle);
      } catch (...) {
        event.reset();
        driver().synchronizeStream(handle);
      }
    } catch (...) { // the stream's work has failed, so it is over
    }
    events->push_back(std::move(event));
  }

  bool query_event(HostEvent& event) override {
    try {
      return event == nullptr || driver().queryEvent(event.get());
    } catch (...) {
      return true;
    }
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

  // Not virtual before 2.12, hence without `override`.
  c10::Stream get_current_stream() const { return getCurrentStream(); }
  bool stream_is_capturing(c10::Stream stream) const { return Stream(stream).isCapturing(); }
};

void deleteHostBlock(void* block);

struct HostAllocator final : at::CachingHostAllocatorInterface<HostAllocatorImpl, &deleteHostBlock> {};

// Lives until the process ends: pinned tensors may be freed after static objects are destroyed.
HostAllocator& hostAllocator() {
  static auto* instance = new HostAllocator();
  return *instance;
}

void deleteHostBlock(void* block) {
  // In a forked child the allocator's mutexes may be held by threads that are not there, and the events are the parent's.
  if (!isInBadFork()) {
    hostAllocator().free(block);
  }
}

REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &hostAllocator())

} // namespace

} // namespace simdev
