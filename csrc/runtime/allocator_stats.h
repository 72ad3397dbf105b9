// The counters behind torch.simdev.memory_stats().
//
// Lives here: one metric with its split into small and large pool, and the set of metrics a device keeps.  Does not live
// here: when they change (device_memory.cpp).  Everything is a plain integer, guarded by the device's allocator lock:
// several of these change with every allocation, so what can be derived when it is read is not stored.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace simdev {

class Metric {
 public:
  void increase(bool large, int64_t amount) noexcept {
    const int64_t current = current_[large] += amount;
    total_[large] += amount;
    if (current > peak_[large]) {
      peak_[large] = current;
    }
    const int64_t all = current_[0] + current_[1];
    if (all > peakOfAll_) {
      peakOfAll_ = all;
    }
  }
  void decrease(bool large, int64_t amount) noexcept { current_[large] -= amount; }
  void change(bool large, int64_t amount) noexcept {
    if (amount > 0) {
      increase(large, amount);
    } else {
      decrease(large, -amount);
    }
  }

  int64_t current() const noexcept { return current_[0] + current_[1]; }

  void resetPeak() noexcept {
    peak_ = current_;
    peakOfAll_ = current();
  }
  void resetAccumulated() noexcept {
    for (int large : {0, 1}) {
      totalBase_[large] = total_[large];
      freedBase_[large] = total_[large] - current_[large];
    }
  }

  c10::CachingAllocator::StatArray stats() const {
    c10::CachingAllocator::StatArray result{};
    auto& all = result[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    for (int large : {0, 1}) {
      auto& part = result[static_cast<size_t>(
          large ? c10::CachingAllocator::StatType::LARGE_POOL : c10::CachingAllocator::StatType::SMALL_POOL)];
      part.current = current_[large];
      part.peak = peak_[large];
      part.allocated = total_[large] - totalBase_[large];
      part.freed = total_[large] - current_[large] - freedBase_[large];
      all.current += part.current;
      all.allocated += part.allocated;
      all.freed += part.freed;
    }
    all.peak = peakOfAll_;
    return result;
  }

 private:
  // [0] small pool, [1] large pool.
  std::array<int64_t, 2> current_{};
  std::array<int64_t, 2> total_{}; // sum of all increases
  std::array<int64_t, 2> peak_{};
  int64_t peakOfAll_ = 0;
  std::array<int64_t, 2> totalBase_{}; // what total_ was at the last resetAccumulated()
  std::array<int64_t, 2> freedBase_{};
};

struct AllocatorStats {
  Metric allocation; // requests that are alive
  Metric allocatedBytes; // their rounded sizes
  Metric requestedBytes; // their sizes as asked for
  Metric active; // blocks in use, or freed and waiting for another stream
  Metric activeBytes;
  Metric inactiveSplit; // free blocks that share their segment with others
  Metric inactiveSplitBytes;
  Metric segment; // allocations from the driver
  Metric reservedBytes;
  c10::CachingAllocator::Stat oversizeAllocations;
  c10::CachingAllocator::Stat oversizeSegments;
  int64_t allocRetries = 0;
  int64_t ooms = 0;
  int64_t syncAllStreams = 0;
  int64_t deviceAllocs = 0;
  int64_t deviceFrees = 0;

  template <class Function>
  void forEachMetric(Function&& function) {
    for (Metric* metric :
         {&allocation,
          &allocatedBytes,
          &requestedBytes,
          &active,
          &activeBytes,
          &inactiveSplit,
          &inactiveSplitBytes,
          &segment,
          &reservedBytes}) {
      function(*metric);
    }
  }
};

} // namespace simdev
