// Devices as PyTorch sees them: how many there are, which one is current, when the chip is started.
//
// Lives here: the current device (a notion of PyTorch, not of the driver), checked device indices, and
// first-use initialisation with its protection against fork.  Does not live here: what a device can do
// (csrc/driver/driver.h).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/macros/Macros.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace simdev {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
// Size of the per-device tables.  A driver with more devices shows only the first kMaxDevices.
inline constexpr c10::DeviceIndex kMaxDevices = 64;

namespace detail {
extern constinit thread_local c10::DeviceIndex currentDeviceIndex;
extern std::atomic<bool> initialized;
extern std::array<std::atomic<bool>, kMaxDevices> deviceUsed;
void initializeOnce();
} // namespace detail

// Never throws (0 on any error, with a warning) and initialises nothing.
c10::DeviceIndex deviceCount() noexcept;

// Throws "simdev error: invalid device ordinal" unless 0 <= device < deviceCount(); with no device, says why.
void checkDeviceIndex(int64_t device);

// The calling thread's current device; starts as 0.  Neither reading nor setting it initialises anything.
inline c10::DeviceIndex currentDevice() noexcept {
  return detail::currentDeviceIndex;
}
inline void uncheckedSetDevice(c10::DeviceIndex device) noexcept {
  detail::currentDeviceIndex = device;
}
void setDevice(c10::DeviceIndex device);
// Both return the previous device.  maybeExchangeDevice leaves the device alone for -1.
c10::DeviceIndex exchangeDevice(c10::DeviceIndex device);
c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device);

// Makes the chip ready; whatever is about to touch it calls this first.  Throws a RuntimeError in a child
// forked after initialisation, and when there is no device or SIMDEV_DRIVER names none.
inline void lazyInit() {
  if (C10_UNLIKELY(!detail::initialized.load(std::memory_order_acquire))) {
    detail::initializeOnce();
  }
}
inline bool isInitialized() noexcept {
  return detail::initialized.load(std::memory_order_acquire);
}

// Adds work that the first use does once, before anybody sees the chip as ready: what has to know the driver.
// For static registrations only.
void onInitialization(void (*work)());

// Whether anything was ever sent to the device (CUDA's "has a primary context").
inline bool isDeviceUsed(c10::DeviceIndex device) noexcept {
  return device >= 0 && device < kMaxDevices && detail::deviceUsed[device].load(std::memory_order_acquire);
}

// True in a forked child of a process that had initialised the runtime.
bool isInBadFork() noexcept;

// -1 stands for the current device; anything else is checked.
c10::DeviceIndex resolveDeviceIndex(int64_t device);

} // namespace simdev
