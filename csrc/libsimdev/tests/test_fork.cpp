// Fork before and after the runtime has started.
#include "test.h"

#include <atomic>

namespace {

void useEverything() {
  void* device = nullptr;
  OK(simMalloc(&device, 1 << 20));
  OK(simMemset(device, 3, 1 << 20));
  unsigned char byte = 0;
  OK(simMemcpy(&byte, device, 1, simMemcpyDeviceToHost));
  CHECK(byte == 3);
  OK(simFree(device));
}

TEST(counting_devices_starts_nothing) {
  int count = 0;
  OK(simGetDeviceCount(&count));
  CHECK(count == 2);
  simDeviceProp properties;
  OK(simGetDeviceProperties(&properties, 1));
  simRuntimeState state = simRuntimeReady;
  OK(simRuntimeGetState(&state));
  CHECK(state == simRuntimeUninitialized);
  CHECK(test::inChild(useEverything).status == 0);
  useEverything(); // and so can the parent
}

TEST(after_the_start_a_child_is_refused_at_once) {
  useEverything();
  void* device = nullptr;
  OK(simMalloc(&device, 100));
  const test::Death death = test::inChild([device] {
    alarm(20);
    int count = 0;
    void* pointer = nullptr;
    simStream_t stream = nullptr;
    simRuntimeState state = simRuntimeReady;
    OK(simGetDeviceCount(&count));
    CHECK(count == 2);
    OK(simRuntimeGetState(&state));
    CHECK(state == simRuntimeBadFork);
    EXPECT(simErrorBadFork, simMalloc(&pointer, 16));
    EXPECT(simErrorBadFork, simFree(device));
    EXPECT(simErrorBadFork, simStreamCreate(&stream));
    EXPECT(simErrorBadFork, simDeviceSynchronize());
    EXPECT(simErrorBadFork, simMemset(device, 0, 1));
  });
  CHECK(death.status == 0);
  OK(simFree(device)); // the parent goes on
  useEverything();
}

TEST(a_fork_while_work_is_pending) {
  static std::atomic<int> done{0};
  for (int i = 0; i < 200; ++i) {
    OK(simLaunchHostFunc(
        nullptr,
        [](void*) {
          usleep(500);
          ++done;
        },
        nullptr));
  }
  CHECK(test::inChild([] { EXPECT(simErrorBadFork, simDeviceSynchronize()); }).status == 0);
  OK(simDeviceSynchronize());
  CHECK(done.load() == 200);
}

TEST(no_devices) {
  setenv("SIMDEV_DEVICE_COUNT", "0", 1);
  int count = 9;
  OK(simGetDeviceCount(&count));
  CHECK(count == 0);
  void* pointer = nullptr;
  EXPECT(simErrorInvalidDevice, simMalloc(&pointer, 16));
}

} // namespace

int main() {
  return test::main("fork");
}
