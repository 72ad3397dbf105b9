// The environment variables of simdev.h, parsed and checked.
#pragma once

#include <cstddef>

namespace sim {

constexpr int kMaxDevices = 64;

struct Config {
  int deviceCount = 2;
  size_t memoryLimit = 0; // bytes per device, a multiple of 2 MiB
  size_t hostMemoryLimit = 0; // bytes of page-locked memory: the machine's RAM
  int numThreads = 1; // compute threads per device
  int numCpus = 1; // CPUs this process may run on
  size_t idleMemory = 0; // bytes per device
  bool launchBlocking = false;
  bool stickyErrors = false;
};

// Reads the environment anew at every call.  Throws Failure(simErrorInvalidValue) for a malformed value.
Config readConfig();

} // namespace sim
