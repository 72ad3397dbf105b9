// See workspace.h.
#include "runtime/workspace.h"

#include "driver/driver.h"

#include <bit>
#include <chrono>
#include <exception>
#include <optional>

namespace simdev {

namespace {

// Powers of two, so that inputs whose sizes vary do not leave a block for each size: all the blocks that were ever needed at
// a time are at most twice the largest of them.  Pages that a kernel does not touch are never made.
size_t roundUp(size_t bytes) {
  return std::bit_ceil(bytes);
}

// How long a kernel in progress is waited for, which has its memory until it ends.
constexpr std::chrono::seconds kPatience{1};

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
      Device& own = devices_[device];
      if (own.pauses > 0) {
        return nullptr;
      }
      if (const auto found = own.unused.lower_bound(size); found != own.unused.end()) {
        block = found->second;
        own.unused.erase(found);
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
    ++devices_[device].used;
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
    Device& own = devices_[block.device];
    own.unused.emplace(block.bytes, block);
    if (--own.used == 0) {
      idle_.notify_all();
    }
  }
}

void Workspace::trim(c10::DeviceIndex device) noexcept {
  std::multimap<size_t, Block> unused;
  {
    std::lock_guard lock(mutex_); // not held below: the work that is waited for may ask for a block
    unused.swap(devices_[device].unused);
  }
  for (const auto& [bytes, block] : unused) {
    driver().deallocate(device, block.base);
  }
}

Workspace::Pause::Pause(c10::DeviceIndex device) : device_(device) {
  Workspace& workspace = instance();
  {
    std::unique_lock lock(workspace.mutex_);
    Device& own = workspace.devices_[device];
    ++own.pauses;
    workspace.idle_.wait_for(lock, kPatience, [&own] { return own.used == 0; });
  }
  workspace.trim(device);
}

Workspace::Pause::~Pause() {
  Workspace& workspace = instance();
  std::lock_guard lock(workspace.mutex_);
  --workspace.devices_[device_].pauses;
}

} // namespace simdev
