// Starting the runtime, and its two ends: fork and exit.
#include "runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "error.h"
#include "fault.h"
#include "fence.h"
#include "spinning.h"
#include "stream.h"
#include "team.h"
#include "thread_state.h"

namespace sim {

namespace {

// exit() waits this long for the commands that are running.
constexpr uint64_t kExitPatienceNanoseconds = 1'000'000'000;

Arena::Layout hostLayout(const Config& config) {
  Arena::Layout layout{.capacity = config.hostMemoryLimit, .alignment = 4096, .idleLimit = config.idleMemory};
  for (layout.windowSize = 2 * layout.capacity; layout.window == 0; layout.windowSize = layout.capacity) {
    layout.window = reserveAddresses(layout.windowSize);
    if (layout.window != 0 || layout.windowSize == layout.capacity) {
      break;
    }
  }
  if (layout.window == 0) {
    fail(
        simErrorInitializationError,
        "cannot reserve %zu MiB of address space for page-locked memory; raise the "
        "limit on address space (ulimit -v)",
        layout.capacity >> 20);
  }
  return layout;
}

} // namespace

// Registered when the library is loaded, not when the runtime starts, so that a fork while another thread is
// starting the runtime waits for that.
struct ForkRegistration {
  ForkRegistration() noexcept {
    pthread_atfork(Runtime::beforeFork, Runtime::afterForkInParent, Runtime::afterForkInChild);
  }
} static forkRegistration;

void Runtime::beforeFork() noexcept {
  startMutex_.lock();
  // The child may ask what a pointer is (DataLoader workers do), so nobody may hold an arena's lock when it
  // is copied.
  if (Runtime* const runtime = ifStarted()) {
    runtime->hostMemory_.mutex().lock();
    for (const auto& device : runtime->devices_) {
      device->memory().mutex().lock();
    }
  }
}

void Runtime::afterForkInParent() noexcept {
  if (Runtime* const runtime = ifStarted()) {
    for (const auto& device : runtime->devices_) {
      device->memory().mutex().unlock();
    }
    runtime->hostMemory_.mutex().unlock();
  }
  startMutex_.unlock();
}

void Runtime::afterForkInChild() noexcept {
  if (ifStarted() != nullptr) {
    state_.store(simRuntimeBadFork, std::memory_order_seq_cst); // the worker threads did not come along
  }
  afterForkInParent();
}

Runtime::Runtime(const Config& config) : config_(config), space_(config), hostMemory_(hostLayout(config)) {
  for (int index = 0; index < config.deviceCount; ++index) {
    devices_.push_back(std::make_unique<Device>(index, config, space_));
  }
}

void Runtime::start() {
  std::lock_guard lock(startMutex_);
  switch (state()) {
    case simRuntimeReady:
      return;
    case simRuntimeBadFork:
      fail(simErrorBadFork, "start child processes with the spawn method, or before using the device");
    case simRuntimeUnloading:
      fail(simErrorRuntimeUnloading);
    case simRuntimeUninitialized:
      break;
  }
  const Config config = readConfig();
  instance_.store(new Runtime(config), std::memory_order_release);
  Spinning::setCpus(config.numCpus);
  AsymmetricFence::prepare();
  installFaultReporter();
  // Runs before the destructors of everything that was loaded before now, which work in the queues may need.
  std::atexit([] { onExit(); });
  state_.store(simRuntimeReady, std::memory_order_release);
}

// Workers stop before their next command, so that nothing runs any more while the process takes itself apart.
void Runtime::onExit() noexcept {
  simRuntimeState ready = simRuntimeReady;
  if (!state_.compare_exchange_strong(ready, simRuntimeUnloading) || thisThread.execution != nullptr) {
    return; // a forked child, or exit() called by device code, which cannot wait for itself
  }
  const uint64_t end = nowNanoseconds() + kExitPatienceNanoseconds;
  for (const auto& device : instance_.load()->devices_) {
    for (const Stream* const stream : device->streams()) {
      while (stream->busy() && nowNanoseconds() < end) {
        usleep(50);
      }
    }
  }
}

Config Runtime::configuration() {
  const Runtime* const runtime = ifStarted();
  return runtime != nullptr ? runtime->config() : readConfig();
}

Device& Runtime::device(int index) {
  checkDevice(index, config_.deviceCount);
  return *devices_[index];
}

Device& Runtime::currentDevice() {
  return device(thisThread.device);
}

Arena* Runtime::arenaOf(const void* pointer) noexcept {
  if (const int device = space_.deviceOf(pointer); device >= 0) {
    return &devices_[device]->memory();
  }
  return hostMemory_.contains(pointer) ? &hostMemory_ : nullptr;
}

void checkDevice(int device, int count) {
  if (device < 0 || device >= count) [[unlikely]] {
    fail(simErrorInvalidDevice, "device %d of %d", device, count);
  }
}

} // namespace sim

using namespace sim;

simError_t simInit() {
  return api([] { Runtime::get(); });
}

simError_t simRuntimeGetState(simRuntimeState* state) {
  return api([&] { *notNull(state, "state") = Runtime::state(); });
}

simError_t simRuntimeGetVersion(int* version) {
  return api([&] { *notNull(version, "version") = SIM_VERSION; });
}

simError_t simSetTeam(const simTeam* team) {
  return api([&] { Team::set(*notNull(team, "team")); });
}
