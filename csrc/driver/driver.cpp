// The choice of the driver.
//
// A port adds its driver to the table.  Does not live here: what a driver does.
#include "csrc/driver/driver.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

namespace simdev {

// Each returns the one driver of its kind, made at the first call, or throws a ValueError that says why it
// cannot be had on this machine.  Neither starts a device.
Driver& cudaDriver(); // cuda_driver.cpp
Driver& simulatorDriver(); // simulator_driver.cpp
Driver& hostDelegateDriver(); // host_delegate.cpp

// cuda_driver.cpp
bool isCudaAvailable();

namespace {

bool always() {
  return true;
}
bool never() {
  return false;
}

struct DriverEntry {
  const char* name;
  Driver& (*create)();
  bool (*automatic)(); // whether `auto` takes it; the first one wins
  const char* description; // empty: known to the tests only
};

constexpr std::array<DriverEntry, 3> kDrivers = {{
    {"cuda", cudaDriver, isCudaAvailable, "an NVIDIA GPU, through a CUDA build of PyTorch"},
    {"simulator", simulatorDriver, always, "the simulated chip, on this machine's CPU"},
    {"delegate", hostDelegateDriver, never, ""},
}};

std::string possibleValues() {
  std::string text = "Possible values: auto (the default: cuda where there is a GPU, else simulator)";
  for (const DriverEntry& entry : kDrivers) {
    if (*entry.description != '\0') {
      text += std::string(", ") + entry.name + " (" + entry.description + ")";
    }
  }
  return text + ".";
}

Driver& chooseDriver() {
  const char* const value = std::getenv("SIMDEV_DRIVER");
  const std::string_view wanted = value == nullptr || *value == '\0' ? "auto" : value;
  for (const DriverEntry& entry : kDrivers) {
    if (wanted == entry.name || (wanted == "auto" && entry.automatic())) {
      return entry.create();
    }
  }
  TORCH_CHECK_VALUE(false, "SIMDEV_DRIVER=\"", wanted, "\" is not a known driver. ", possibleValues());
}

std::atomic<Driver*> chosen{nullptr};

} // namespace

// No lock: looking for a GPU asks Python (cuda_driver.h), and threads that choose at the same time choose the
// same.
Driver& driver() {
  if (Driver* const known = chosen.load(std::memory_order_acquire)) {
    return *known;
  }
  Driver* none = nullptr;
  chosen.compare_exchange_strong(none, &chooseDriver(), std::memory_order_acq_rel);
  return *chosen.load(std::memory_order_acquire);
}

Driver* chosenDriver() noexcept {
  return chosen.load(std::memory_order_acquire);
}

} // namespace simdev
