// See workspace.h.
#include "runtime/workspace.h"

#include "driver/driver.h"

#include <bit>
#include <chrono>
#include <exception>

namespace simdev {

namespace {

// Powers of two, so that inputs whose sizes vary do not leave a block for each size: all the blocks that were ever needed at
// a time are at most twice the largest of them.  Pages that a kernel does not touch are never made.
size_t roundUp(size_t bytes) {
  return std::bit_ceil(bytes);
}

// How long a kernel in progress is waited for, which has its memory until it ends: not for ever, since it may never end.
constexpr std::chrono::seconds kPatience{10};

} // namespace

Workspace& Workspace::instance() {
  static auto* workspace = new Workspace; // outlives the device's threads
  return *workspace;
}

void* Workspace::allocate(c10::DeviceIndex device, size_t bytes) noexcept {
  const size_t size = roundUp(bytes);
  std::optional<Block> block;
  {
    std::lock_guard lock(mutex_);
    Device& own = devices_[device];
    if (own.pauses > 0) {
      return nullptr;
    }
    // Counted before the driver is asked, which happens without the lock: a pause that begins meanwhile must wait for it.
    ++own.used;
    if (const auto found = own.unused.lower_bound(size); found != own.unused.end()) {
      block = found->second;
      own.unused.erase(found);
    }
  }
  try {
    if (!block.has_value()) {
      if (void* const base = driver().allocate(device, size); base != nullptr) {
        block = Block{device, base, size};
      }
    }
    if (block.has_value()) {
      void* const pointer = driver().kernelPointer(device, block->base);
      std::lock_guard lock(mutex_);
      used_.emplace(pointer, *block);
      return pointer;
    }
  } catch (const std::exception&) { // a kernel can do without
  }
  std::lock_guard lock(mutex_);
  finish(device, block);
  return nullptr;
}

void Workspace::finish(c10::DeviceIndex device, const std::optional<Block>& block) {
  Device& own = devices_[device];
  if (block.has_value()) {
    own.unused.emplace(block->bytes, *block);
  }
  if (--own.used == 0) {
    idle_.notify_all();
  }
}

void Workspace::release(void* pointer) noexcept {
  std::lock_guard lock(mutex_);
  if (const auto found = used_.find(pointer); found != used_.end()) {
    const Block block = found->second;
    used_.erase(found);
    finish(block.device, block);
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
