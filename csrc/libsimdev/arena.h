// One memory: the allocations of a device, or of page-locked host memory.
//
// An arena hands out addresses of a *window* and keeps memory behind them at window + distance.  For a device
// the window itself is never accessible (address_space.h); for host memory the distance is 0.  Waiting for
// work that still uses an allocation is up to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "range_set.h"

namespace sim {

constexpr size_t kGranule = size_t{2}
                            << 20; // the size of a huge page; memory is made accessible in these steps

struct Allocation {
  uintptr_t base = 0;
  size_t size = 0; // bytes asked for
  size_t reserved = 0; // bytes taken
};

class Arena {
 public:
  struct Layout {
    uintptr_t window = 0; // kGranule aligned
    size_t windowSize = 0; // at least the capacity; more leaves room for fragmentation
    uintptr_t distance = 0; // from window to memory, modulo 2^64
    size_t capacity = 0; // bytes, a multiple of kGranule
    size_t alignment = 0; // of allocations below a mebibyte, a power of two
    size_t idleLimit = 0; // freed bytes that stay resident
  };
  explicit Arena(const Layout& layout);

  // Null when the capacity, or the machine's memory, is exhausted.
  void* allocate(size_t bytes);
  // Freeing is in two steps.  First the allocation disappears from find(), or nothing happens if there is
  // none that starts here; then, when nobody uses the memory any more, it is given back.
  std::optional<Allocation> forget(const void* pointer);
  void giveBack(const Allocation& allocation);
  // The allocation that contains the pointer.
  std::optional<Allocation> find(const void* pointer);
  // For the fault reporter: gives up instead of waiting for a lock.
  std::optional<Allocation> tryFind(const void* pointer) noexcept;

  bool contains(const void* pointer) const noexcept {
    return reinterpret_cast<uintptr_t>(pointer) - layout_.window < layout_.windowSize;
  }
  size_t capacity() const noexcept { return layout_.capacity; }
  size_t freeBytes();

  // Around fork(), so that the child does not inherit a locked lock.
  std::mutex& mutex() noexcept { return mutex_; }

 private:
  std::optional<size_t> takeGranules(size_t bytes);
  void returnGranules(size_t offset, size_t bytes);
  bool makeAccessible(size_t offset, size_t bytes);
  void makeInaccessible(size_t firstGranule, size_t count) noexcept;
  std::optional<Allocation> findLocked(const void* pointer) const;

  const Layout layout_;
  std::mutex mutex_;
  RangeSet large_; // whole granules
  RangeSet small_{kGranule}; // pieces of granules that serve allocations below a mebibyte
  std::map<uintptr_t, Allocation> allocations_;
  std::vector<bool> accessible_; // by granule: memory is (or may be) resident
  size_t used_ = 0; // bytes of granules taken from large_
  size_t smallFree_ = 0; // bytes free in small_
  size_t idle_ = 0; // bytes of accessible granules in large_
};

} // namespace sim
