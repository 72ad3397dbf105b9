// The choice of the driver.
//
// A port adds its driver to the table.  Does not live here: what a driver does.
#include "csrc/driver/driver.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

namespace simdev {

// simulator_driver.cpp
Driver& simulatorDriver();

namespace {

struct DriverEntry {
  const char* name;
  Driver& (*create)(); // throws when this machine cannot have it; null while it has not been written
  const char* description;
};

// `auto` takes the first that can be created.
constexpr std::array<DriverEntry, 2> kDrivers = {{
    {"simulator", simulatorDriver, "the simulated chip, on this machine's CPU"},
    {"cuda", nullptr, "a CUDA device"},
}};

std::string possibleValues() {
  std::string text = "Possible values: auto (the default)";
  for (const DriverEntry& entry : kDrivers) {
    text += std::string(", ") + entry.name + " (" + entry.description;
    text += entry.create == nullptr ? "; not built yet)" : ")";
  }
  return text + ".";
}

Driver& chooseDriver() {
  const char* const value = std::getenv("SIMDEV_DRIVER");
  const std::string_view wanted = value == nullptr || *value == '\0' ? "auto" : value;
  for (const DriverEntry& entry : kDrivers) {
    if (wanted == entry.name) {
      TORCH_CHECK_VALUE(
          entry.create != nullptr, "SIMDEV_DRIVER=\"", wanted, "\": this driver is not built yet. ", possibleValues());
      return entry.create();
    }
    if (wanted == "auto" && entry.create != nullptr) {
      return entry.create();
    }
  }
  TORCH_CHECK_VALUE(false, "SIMDEV_DRIVER=\"", wanted, "\" is not a known driver. ", possibleValues());
}

} // namespace

Driver& driver() {
  static std::atomic<Driver*> chosen{nullptr};
  if (Driver* const known = chosen.load(std::memory_order_acquire)) {
    return *known;
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (chosen.load(std::memory_order_relaxed) == nullptr) {
    chosen.store(&chooseDriver(), std::memory_order_release);
  }
  return *chosen.load(std::memory_order_relaxed);
}

} // namespace simdev
