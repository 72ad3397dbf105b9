// PyTorch's device allocator for simdev: what torch.empty, torch.accelerator.memory_* and record_stream reach.
//
// Lives here: c10::DeviceAllocator's interface, and what CUDA's allocator offers beyond it (fraction, history, private
// pools).  Does not live here: how memory is managed (device_memory.h).
//
// Registered when the library is loaded; initialises nothing before the first allocation.  Any thread may call anything, with
// or without the GIL, which the allocator itself never takes (stack traces of the memory history do, outside its locks).
#pragma once

#include "runtime/allocator_trace.h"
#include "runtime/device.h"
#include "runtime/device_memory.h"
#include "runtime/stream.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace simdev {

class CachingAllocator final : public c10::DeviceAllocator {
 public:
  using StreamFilter = DeviceMemory::StreamFilter;

  // --- c10::Allocator ---

  // On the current device, for use on its current stream.  n == 0 gives a null pointer with the right device.
  c10::DataPtr allocate(size_t n) override;
  // A DataPtr's context is its pointer, so raw_allocate() works, and copy-on-write storage.
  c10::DeleterFnPtr raw_deleter() const override { return &deletePointer; }
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  // --- c10::DeviceAllocator.  device == -1 stands for the current device. ---

  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override; // {free, total}

  // --- Beyond c10's interface, as c10::cuda::CUDACachingAllocator has it ---

  // For work on a given stream of a given device; the fast way for whoever knows both.
  c10::DataPtr allocate(size_t n, c10::DeviceIndex device, StreamHandle stream);

  // Plain pointers, for other frameworks.  rawDelete throws for what is not the start of live memory.
  void* rawAllocate(size_t n, c10::DeviceIndex device, StreamHandle stream);
  void rawDelete(void* pointer);

  void setMemoryFraction(double fraction, c10::DeviceIndex device);
  double getMemoryFraction(c10::DeviceIndex device);

  // Between begin and end, allocations for streams that the filter accepts come from the private pool `id`, which begin
  // creates or retains.  The pool's memory goes back with the emptyCache() after the last releasePool().
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id, StreamFilter filter);
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id);
  void retainPool(c10::DeviceIndex device, c10::MempoolId_t id);
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t id);
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id);

  // For all devices, also those not used yet.
  void recordHistory(const HistorySettings& settings, bool clear);
  MemorySnapshot snapshot(std::optional<c10::MempoolId_t> pool, bool includeTraces);
  // Where a live allocation was made, if that was recorded; else nullptr.
  std::shared_ptr<c10::GatheredContext> contextForPointer(const void* pointer);

 private:
  DeviceMemory& memoryOf(c10::DeviceIndex device) {
    DeviceMemory* memory = devices_[static_cast<size_t>(device)].load(std::memory_order_acquire);
    return C10_LIKELY(memory != nullptr) ? *memory : startDevice(device);
  }
  DeviceMemory& startDevice(c10::DeviceIndex device);
  DeviceMemory& checkedMemoryOf(c10::DeviceIndex device);
  template <class Function>
  void forEachDevice(Function&& function);

  static void deletePointer(void* pointer);

  std::array<std::atomic<DeviceMemory*>, kMaxDevices> devices_{};
  std::mutex startMutex_;
  HistorySettings history_; // guarded by startMutex_
};

// Lives until the process ends, whatever order things are destroyed in.
CachingAllocator& allocator();

} // namespace simdev
