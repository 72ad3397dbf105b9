// Allocation inside a window, and the memory behind it.
//
// Memory that has been touched once stays accessible and resident after it is freed, up to a limit, so that
// the next large allocation costs neither a system call nor a page fault.
#include "arena.h"

#include <sys/mman.h>

#include <algorithm>

namespace sim {

namespace {

constexpr size_t kLargeBytes = size_t{1} << 20;

constexpr size_t roundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

} // namespace

Arena::Arena(const Layout& layout) : layout_(layout), accessible_(layout.windowSize / kGranule) {
  large_.insert(0, layout_.windowSize);
}

void* Arena::allocate(size_t bytes) {
  if (bytes > layout_.capacity) {
    return nullptr; // also keeps the rounding below from overflowing
  }
  std::lock_guard lock(mutex_);
  Allocation allocation{0, bytes, 0};
  std::optional<size_t> offset;
  if (bytes >= kLargeBytes) {
    allocation.reserved = roundUp(bytes, kGranule);
    offset = takeGranules(allocation.reserved);
  } else {
    allocation.reserved = roundUp(bytes, layout_.alignment);
    offset = small_.take(allocation.reserved);
    if (!offset) {
      if (const auto slab = takeGranules(kGranule)) {
        small_.insert(*slab, kGranule);
        smallFree_ += kGranule;
        offset = small_.take(allocation.reserved);
      }
    }
    smallFree_ -= offset ? allocation.reserved : 0;
  }
  if (!offset) {
    return nullptr;
  }
  allocation.base = layout_.window + *offset;
  allocations_.emplace(allocation.base, allocation);
  return reinterpret_cast<void*>(allocation.base);
}

std::optional<Allocation> Arena::forget(const void* pointer) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations_.end()) {
    return std::nullopt;
  }
  const Allocation allocation = found->second;
  allocations_.erase(found);
  return allocation;
}

void Arena::giveBack(const Allocation& allocation) {
  std::lock_guard lock(mutex_);
  const size_t offset = allocation.base - layout_.window;
  if (allocation.size >= kLargeBytes) {
    returnGranules(offset, allocation.reserved);
    return;
  }
  small_.insert(offset, allocation.reserved);
  smallFree_ += allocation.reserved;
  const size_t slab = offset / kGranule * kGranule;
  if (small_.takeExactly(slab, kGranule)) {
    smallFree_ -= kGranule;
    returnGranules(slab, kGranule);
  }
}

std::optional<Allocation> Arena::find(const void* pointer) {
  std::lock_guard lock(mutex_);
  return findLocked(pointer);
}

std::optional<Allocation> Arena::tryFind(const void* pointer) noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock ? findLocked(pointer) : std::nullopt;
}

std::optional<Allocation> Arena::findLocked(const void* pointer) const {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) {
    return std::nullopt;
  }
  const Allocation& allocation = std::prev(after)->second;
  return address - allocation.base < allocation.size ? std::optional(allocation) : std::nullopt;
}

size_t Arena::freeBytes() {
  std::lock_guard lock(mutex_);
  return layout_.capacity - used_ + smallFree_;
}

std::optional<size_t> Arena::takeGranules(size_t bytes) {
  if (bytes > layout_.capacity - used_) {
    return std::nullopt;
  }
  const std::optional<size_t> offset = large_.take(bytes);
  if (!offset) {
    return std::nullopt;
  }
  if (!makeAccessible(*offset, bytes)) {
    large_.insert(*offset, bytes);
    return std::nullopt;
  }
  used_ += bytes;
  return offset;
}

void Arena::returnGranules(size_t offset, size_t bytes) {
  used_ -= bytes;
  idle_ += bytes;
  large_.insert(offset, bytes);
  if (idle_ > layout_.idleLimit) {
    const size_t count = std::min(bytes, roundUp(idle_ - layout_.idleLimit, kGranule)) / kGranule;
    makeInaccessible((offset + bytes) / kGranule - count, count);
  }
}

// On failure nothing has changed but that some granules have become idle.
bool Arena::makeAccessible(size_t offset, size_t bytes) {
  const size_t begin = offset / kGranule, end = (offset + bytes) / kGranule;
  size_t wasIdle = 0;
  for (size_t first = begin; first < end;) {
    if (accessible_[first]) {
      wasIdle += kGranule;
      ++first;
      continue;
    }
    size_t last = first;
    while (last < end && !accessible_[last]) {
      ++last;
    }
    void* const memory = reinterpret_cast<void*>(layout_.window + layout_.distance + first * kGranule);
    if (mprotect(memory, (last - first) * kGranule, PROT_READ | PROT_WRITE) != 0) {
      idle_ += (first - begin) * kGranule - wasIdle;
      return false;
    }
    std::fill(accessible_.begin() + first, accessible_.begin() + last, true);
    first = last;
  }
  idle_ -= wasIdle;
  return true;
}

void Arena::makeInaccessible(size_t firstGranule, size_t count) noexcept {
  void* const memory = reinterpret_cast<void*>(layout_.window + layout_.distance + firstGranule * kGranule);
  madvise(memory, count * kGranule, MADV_DONTNEED);
  mprotect(memory, count * kGranule, PROT_NONE);
  std::fill_n(accessible_.begin() + firstGranule, count, false);
  idle_ -= count * kGranule;
}

} // namespace sim
