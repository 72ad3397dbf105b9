// The reservation behind all device pointers.
#include "address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "arena.h"
#include "error.h"

namespace sim {

uintptr_t reserveAddresses(size_t bytes) noexcept {
  // PROT_NONE and NORESERVE: nothing but an entry in the process's list of mappings.
  void* const memory =
      mmap(nullptr, bytes + kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return 0;
  }
  madvise(memory, bytes + kGranule, MADV_HUGEPAGE);
  return (reinterpret_cast<uintptr_t>(memory) + kGranule - 1) / kGranule * kGranule;
}

AddressSpace::AddressSpace(const Config& config) : count_(config.deviceCount) {
  const size_t slots = static_cast<size_t>(count_) * (count_ + 1);
  const size_t smallest = std::bit_ceil(config.memoryLimit);
  // Twice the capacity lets a device use all of it however fragmented it is; under a limit on address space
  // (ulimit -v) or with many large devices it has to do with less.
  for (size_t size = 2 * smallest; size >= smallest && base_ == 0; size /= 2) {
    shift_ = std::countr_zero(size);
    base_ = reserveAddresses(slots * size);
  }
  if (base_ == 0 && slots > 0) {
    fail(
        simErrorInitializationError,
        "cannot reserve address space for %d devices of %zu MiB (%zu GiB); lower SIMDEV_DEVICE_COUNT or "
        "SIMDEV_MEMORY_LIMIT, or raise the limit on address space (ulimit -v)",
        count_,
        config.memoryLimit >> 20,
        slots * smallest >> 30);
  }
  for (int device = 0; device < count_; ++device) {
    // A fork would make the parent copy every page it writes afterwards; the child cannot use the memory
    // anyway.
    madvise(reinterpret_cast<void*>(window(device) + offset(device)), windowSize(), MADV_DONTFORK);
  }
}

AddressSpace::Image AddressSpace::imageOf(uintptr_t address) const noexcept {
  const uintptr_t slot = (address - base_) >> shift_;
  const uintptr_t count = static_cast<uintptr_t>(count_);
  if (slot < count || slot >= count * (count + 1)) {
    return {};
  }
  const int device = static_cast<int>(slot / count) - 1;
  return {device, static_cast<int>(slot % count), address - offset(device)};
}

} // namespace sim
