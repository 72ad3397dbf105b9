// The runtime as a whole: whether it has started, and what it consists of then.
//
// There is one, and it is never destroyed: at the end of the process other threads, and destructors of other
// libraries, may still use it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "address_space.h"
#include "arena.h"
#include "config.h"
#include "device.h"
#include "simdev.h"

namespace sim {

class Runtime {
 public:
  // Starts the runtime if need be; throws a Failure when it cannot be used in this process (any more).
  static Runtime& get() {
    if (state_.load(std::memory_order_acquire) != simRuntimeReady) [[unlikely]] {
      start();
    }
    return *instance_.load(std::memory_order_relaxed);
  }
  // The runtime if it has ever started in this process or the one it was forked from, else null.
  static Runtime* ifStarted() noexcept { return instance_.load(std::memory_order_acquire); }
  static simRuntimeState state() noexcept { return state_.load(std::memory_order_acquire); }
  static bool unloading() noexcept { return state_.load(std::memory_order_seq_cst) == simRuntimeUnloading; }

  // The configuration of the runtime, or of one that would start now.
  static Config configuration();

  const Config& config() const noexcept { return config_; }
  const AddressSpace& space() const noexcept { return space_; }
  Device& device(int index);
  Device& currentDevice();
  const std::vector<std::unique_ptr<Device>>& devices() const noexcept { return devices_; }
  Arena& hostMemory() noexcept { return hostMemory_; }
  // The arena whose window the pointer lies in, or null: pageable memory.
  Arena* arenaOf(const void* pointer) noexcept;

 private:
  explicit Runtime(const Config& config);
  static void start();
  static void onExit() noexcept;
  // Handlers of pthread_atfork.
  static void beforeFork() noexcept;
  static void afterForkInParent() noexcept;
  static void afterForkInChild() noexcept;
  friend struct ForkRegistration;

  static inline std::atomic<simRuntimeState> state_{simRuntimeUninitialized};
  static inline std::atomic<Runtime*> instance_{nullptr};
  static inline std::mutex startMutex_;

  const Config config_;
  const AddressSpace space_;
  Arena hostMemory_;
  std::vector<std::unique_ptr<Device>> devices_;
};

void checkDevice(int device, int count);

} // namespace sim
