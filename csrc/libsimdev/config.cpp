// The environment variables of simdev.h, parsed and checked.
#include "config.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "error.h"

namespace sim {

namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024, kTiB = kGiB * 1024;

// Digits with an optional unit; nothing for anything else, including what does not fit.
std::optional<uint64_t> parseNumber(const char* text, bool units) {
  static constexpr struct {
    const char* suffix;
    size_t factor;
  } kUnits[] = {
      {"", 1},
      {"K", kKiB},
      {"KB", kKiB},
      {"KIB", kKiB},
      {"M", kMiB},
      {"MB", kMiB},
      {"MIB", kMiB},
      {"G", kGiB},
      {"GB", kGiB},
      {"GIB", kGiB},
      {"T", kTiB},
      {"TB", kTiB},
      {"TIB", kTiB}};
  uint64_t value = 0;
  const char* end = text;
  for (; std::isdigit(static_cast<unsigned char>(*end)); ++end) {
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *end - '0', &value)) {
      return std::nullopt;
    }
  }
  if (end == text) {
    return std::nullopt;
  }
  for (const auto& unit : kUnits) {
    if (strcasecmp(end, unit.suffix) == 0 && (units || *end == '\0')) {
      return __builtin_mul_overflow(value, unit.factor, &value) ? std::nullopt : std::optional(value);
    }
  }
  return std::nullopt;
}

// An unset or empty variable means `otherwise`.
uint64_t number(
    const char* variable,
    uint64_t otherwise,
    uint64_t least,
    uint64_t greatest,
    bool units,
    const char* accepted) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') {
    return otherwise;
  }
  const std::optional<uint64_t> value = parseNumber(text, units);
  if (!value || *value < least || *value > greatest) {
    fail(simErrorInvalidValue, "%s=\"%s\" is not valid; accepted is %s", variable, text, accepted);
  }
  return *value;
}

int availableCpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
    return std::max(1, CPU_COUNT(&cpus));
  }
  return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)); // more CPUs than cpu_set_t holds
}

// OMP_NUM_THREADS belongs to others: what we cannot read (it may be a list) is not our error.
int defaultThreads(int cpus) {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const std::optional<uint64_t> value = text ? parseNumber(text, false) : std::nullopt;
  return value && *value >= 1 ? static_cast<int>(std::min<uint64_t>(*value, cpus)) : cpus;
}

} // namespace

Config readConfig() {
  const size_t ram =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto wholeGranules = [](size_t bytes) { return bytes / (2 * kMiB) * (2 * kMiB); };
  const char* size = "a number of bytes, or of KiB, MiB, GiB, TiB with that suffix (or K, M, G, T)";
  Config config;
  config.deviceCount = static_cast<int>(
      number("SIMDEV_DEVICE_COUNT", 2, 0, kMaxDevices, false, "a whole number of devices from 0 to 64"));
  config.memoryLimit = wholeGranules(number(
      "SIMDEV_MEMORY_LIMIT",
      std::min(16 * kGiB, ram / 4 * 3),
      2 * kMiB,
      16 * kTiB,
      true,
      "2MiB to 16TiB: a number of bytes, or with a suffix K, M, G, T, KiB, MiB, GiB or TiB"));
  config.hostMemoryLimit = wholeGranules(ram);
  config.numCpus = availableCpus();
  config.numThreads = static_cast<int>(number(
      "SIMDEV_NUM_THREADS",
      defaultThreads(config.numCpus),
      1,
      1024,
      false,
      "a whole number of threads from 1 to 1024"));
  config.idleMemory = number("SIMDEV_IDLE_MEMORY", kGiB, 0, SIZE_MAX, true, size);
  config.launchBlocking = number("SIMDEV_LAUNCH_BLOCKING", 0, 0, 1, false, "0 or 1") != 0;
  config.stickyErrors = number("SIMDEV_STICKY_ERRORS", 0, 0, 1, false, "0 or 1") != 0;
  return config;
}

} // namespace sim
