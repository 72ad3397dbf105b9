// See workspace.h.
#include "runtime/workspace.h"

#include "driver/driver.h"

#include <bit>
#include <exception>
#include <optional>

namespace simdev {

namespace {

// Eight sizes between a power of two and the next, so that blocks of nearly the same size serve each other.
size_t roundUp(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// A block that is larger than that is left for a larger request.
size_t largestFor(size_t bytes) {
  return 2 * bytes;
}

} // namespace

Workspace& Workspace::instance() {
  static auto* workspace = new Workspace; // outlives the device's threads
  return *workspace;
}

void* Workspace::allocate(c10::DeviceIndex device, size_t bytes) noexcept {
  const size_t size = roundUp(bytes);
  try {
    std::optional<Block> block;
    {
      std::lock_guard lock(mutex_);
      auto& blocks = free_[device];
      if (const auto found = blocks.lower_bound(size);
          found != blocks.end() && found->first <= largestFor(size)) {
        block = found->second;
        blocks.erase(found);
      }
    }
    if (!block.has_value()) {
      void* const base = driver().allocate(device, size);
      if (base == nullptr) {
        return nullptr;
      }
      block = Block{device, base, size};
    }
    void* const pointer = driver().kernelPointer(device, block->base);
    std::lock_guard lock(mutex_);
    used_.emplace(pointer, *block);
    return pointer;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void Workspace::release(void* pointer) noexcept {
  std::lock_guard lock(mutex_);
  if (const auto found = used_.find(pointer); found != used_.end()) {
    const Block block = found->second;
    used_.erase(found);
    free_[block.device].emplace(block.bytes, block);
  }
}

void Workspace::trim(c10::DeviceIndex device) noexcept {
  std::multimap<size_t, Block> unused;
  {
    std::lock_guard lock(mutex_); // not held below: the work that is waited for may ask for a block
    unused.swap(free_[device]);
  }
  for (const auto& [bytes, block] : unused) {
    driver().deallocate(device, block.base);
  }
}

} // namespace simdev
