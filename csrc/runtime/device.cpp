// Device count, checked indices and first-use initialisation.
#include "runtime/device.h"

#include "compat.h"
#include "driver/delegate_driver.h"
#include "runtime/stream.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <vector>

namespace simdev {

namespace detail {
constinit thread_local c10::DeviceIndex currentDeviceIndex = 0;
std::atomic<bool> initialized{false};
std::array<std::atomic<bool>, kMaxDevices> deviceUsed{};
} // namespace detail

namespace {

// The SDK's number for this error in CUDA; PyTorch shows it as AcceleratorError.error_code.
constexpr int32_t kErrorInvalidDevice = 101;

std::atomic<bool> badFork{false};
std::atomic<int> knownDeviceCount{0};

// Runs in the child, in the one thread that survives the fork.  Only plain stores are allowed here.
void markChildAfterFork() {
  if (detail::initialized.load(std::memory_order_relaxed)) {
    badFork.store(true, std::memory_order_relaxed);
    detail::initialized.store(false, std::memory_order_relaxed);
    // The handles name queues whose workers live in the parent; the next look-up must go through lazyInit().
    detail::currentStreams = {};
  }
}

std::vector<void (*)()>& initializationWork() {
  static std::vector<void (*)()> work;
  return work;
}

// Throws the driver's reason for having no device, such as a malformed setting, if there is one.
int countDevices() {
  const int count = std::min<int>(driver().deviceCount(), kMaxDevices);
  if (count == 0) {
    try {
      driver().deviceProperties(0);
    } catch (const c10::AcceleratorError& error) {
      if (error.get_error_code() != kErrorInvalidDevice) {
        throw;
      }
    }
  }
  return count;
}

void checkAnyDevice() {
  TORCH_CHECK(
      countDevices() > 0, "No simdev device is available: the driver '", driver().name(), "' reports none");
}

} // namespace

namespace detail {

void initializeOnce() {
  TORCH_CHECK(
      !isInBadFork(),
      "Cannot re-initialize simdev in forked subprocess. To use simdev with multiprocessing, you must use "
      "the 'spawn' start method");
  // Without the lock, since a delegate may take the GIL, which another thread here may hold.
  checkAnyDevice();
  if (DelegateDriver* delegate = driver().delegate()) {
    delegate->initialize();
  }
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (isInitialized()) {
    return;
  }
  for (void (*work)() : initializationWork()) {
    work();
  }
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &markChildAfterFork);
  initialized.store(true, std::memory_order_release);
}

} // namespace detail

c10::DeviceIndex deviceCount() noexcept {
  int count = knownDeviceCount.load(std::memory_order_relaxed);
  if (C10_LIKELY(count > 0)) {
    return static_cast<c10::DeviceIndex>(count);
  }
  try {
    count = countDevices();
  } catch (const std::exception& error) {
    try {
      TORCH_WARN("simdev initialization: ", compat::message(error));
    } catch (...) { // warnings may have been turned into errors
    }
    return 0;
  }
  knownDeviceCount.store(count, std::memory_order_relaxed);
  return static_cast<c10::DeviceIndex>(count);
}

void checkDeviceIndex(int64_t device) {
  const c10::DeviceIndex count = deviceCount();
  if (C10_LIKELY(device >= 0 && device < count)) {
    return;
  }
  checkAnyDevice();
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      kErrorInvalidDevice,
      c10::str(
          "simdev error: invalid device ordinal\ndevice index ",
          device,
          " was given, but there are ",
          static_cast<int>(count),
          " simdev devices"));
}

void setDevice(c10::DeviceIndex device) {
  checkDeviceIndex(device);
  uncheckedSetDevice(device);
}

c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) {
  const c10::DeviceIndex previous = currentDevice();
  if (device != previous) {
    setDevice(device);
  }
  return previous;
}

c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) {
  return device == -1 ? currentDevice() : exchangeDevice(device);
}

void onInitialization(void (*work)()) {
  initializationWork().push_back(work);
}

bool isInBadFork() noexcept {
  return badFork.load(std::memory_order_relaxed);
}

c10::DeviceIndex resolveDeviceIndex(int64_t device) {
  if (device == -1) {
    return currentDevice();
  }
  checkDeviceIndex(device);
  return static_cast<c10::DeviceIndex>(device);
}

} // namespace simdev
