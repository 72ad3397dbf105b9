// Streams, events, launches and asynchronous errors.
#include "test.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

simLaunchConfig on(simStream_t stream, uint32_t grid = 1, const char* name = "test kernel") {
  return {{grid, 1, 1}, {1, 1, 1}, stream, name};
}

// A host function that keeps a stream busy until it is told to go on.
struct Gate {
  std::atomic<bool> open{false};
  static void wait(void* data) {
    while (!static_cast<Gate*>(data)->open.load()) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
};

void count(void* data) {
  static_cast<std::atomic<int>*>(data)->fetch_add(1);
}
void nothing(const simKernelContext*, const void*) {}

struct AddArguments {
  int* data;
  int amount;
  int elements;
};

void add(const simKernelContext* context, const void* args) {
  const auto& a = *static_cast<const AddArguments*>(args);
  int* data = static_cast<int*>(simLocalPointer(context, a.data));
  const uint32_t share = (static_cast<uint32_t>(a.elements) + context->gridDim.x - 1) / context->gridDim.x;
  const uint32_t begin = share * context->blockIdx.x;
  for (uint32_t i = begin; i < begin + share && i < static_cast<uint32_t>(a.elements); ++i) {
    data[i] += a.amount;
  }
}

TEST(blocks_of_a_grid_run_once_each) {
  constexpr int kElements = 100003;
  int* device = nullptr;
  OK(simMalloc(reinterpret_cast<void**>(&device), kElements * sizeof(int)));
  OK(simMemset(device, 0, kElements * sizeof(int)));
  for (uint32_t grid : {1u, 2u, 7u, 64u, 1000u}) {
    const AddArguments arguments{device, 3, kElements};
    const simLaunchConfig config = on(nullptr, grid);
    OK(simLaunchKernel(&config, add, &arguments, sizeof(arguments)));
  }
  std::vector<int> host(kElements);
  OK(simMemcpy(host.data(), device, kElements * sizeof(int), simMemcpyDeviceToHost));
  for (int value : host) {
    CHECK(value == 15);
  }
}

TEST(arguments_are_copied_at_launch) {
  Gate gate;
  OK(simLaunchHostFunc(nullptr, Gate::wait, &gate));
  int* device = nullptr;
  OK(simMalloc(reinterpret_cast<void**>(&device), 4));
  OK(simMemsetAsync(device, 0, 4, nullptr));
  struct {
    AddArguments add;
    char padding[4000]; // too large for a queue slot
  } arguments{{device, 5, 1}, {}};
  const simLaunchConfig config = on(nullptr);
  OK(simLaunchKernel(&config, add, &arguments, sizeof(arguments)));
  arguments.add.amount = 1000;
  gate.open = true;
  int value = 0;
  OK(simMemcpy(&value, device, 4, simMemcpyDeviceToHost));
  CHECK(value == 5);
  EXPECT(simErrorInvalidValue, simLaunchKernel(&config, add, &arguments, simMaxKernelArgBytes + 1));
  EXPECT(simErrorInvalidValue, simLaunchKernel(&config, nullptr, nullptr, 0));
  const simLaunchConfig empty = on(nullptr, 0);
  EXPECT(simErrorInvalidConfiguration, simLaunchKernel(&empty, nothing, nullptr, 0));
}

TEST(a_full_queue_makes_the_caller_wait) {
  Gate gate;
  std::atomic<int> done{0};
  OK(simLaunchHostFunc(nullptr, Gate::wait, &gate));
  std::atomic<int> queued{0};
  std::thread producer([&] {
    for (int i = 0; i < 5000; ++i) {
      OK(simLaunchHostFunc(nullptr, count, &done));
      ++queued;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(queued.load() < 5000); // back-pressure
  CHECK(done.load() == 0);
  gate.open = true;
  producer.join();
  OK(simStreamSynchronize(nullptr));
  CHECK(done.load() == 5000);
}

TEST(streams_of_a_device_overlap) {
  simStream_t a = nullptr, b = nullptr;
  OK(simStreamCreate(&a));
  OK(simStreamCreateWithFlags(&b, simStreamNonBlocking));
  Gate gate;
  std::atomic<int> done{0};
  OK(simLaunchHostFunc(a, Gate::wait, &gate));
  OK(simLaunchHostFunc(b, count, &done));
  OK(simStreamSynchronize(b));
  CHECK(done.load() == 1);
  EXPECT(simErrorNotReady, simStreamQuery(a));
  CHECK(simGetLastError() == simSuccess); // NotReady is an answer
  gate.open = true;
  OK(simStreamSynchronize(a));
  OK(simStreamQuery(a));
}

TEST(priorities_are_clamped) {
  int least = 1, greatest = 1, priority = 9;
  OK(simDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(least == 0 && greatest < 0);
  simStream_t stream = nullptr;
  OK(simStreamCreateWithPriority(&stream, 0, -100));
  OK(simStreamGetPriority(stream, &priority));
  CHECK(priority == greatest);
  OK(simStreamCreateWithPriority(&stream, 0, 100));
  OK(simStreamGetPriority(stream, &priority));
  CHECK(priority == least);
}

TEST(a_destroyed_stream_finishes_its_work) {
  simStream_t stream = nullptr;
  OK(simStreamCreate(&stream));
  Gate gate;
  std::atomic<int> done{0};
  OK(simLaunchHostFunc(stream, Gate::wait, &gate));
  for (int i = 0; i < 100; ++i) {
    OK(simLaunchHostFunc(stream, count, &done));
  }
  const auto start = Clock::now();
  OK(simStreamDestroy(stream));
  CHECK(Clock::now() - start < std::chrono::seconds(1)); // does not wait
  EXPECT(simErrorInvalidResourceHandle, simStreamSynchronize(stream));
  EXPECT(simErrorInvalidResourceHandle, simStreamDestroy(stream));
  gate.open = true;
  for (int i = 0; i < 1000 && done.load() < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(done.load() == 100);
}

TEST(freeing_memory_waits_for_pending_work) {
  int* device = nullptr;
  OK(simMalloc(reinterpret_cast<void**>(&device), 4096));
  OK(simMemset(device, 0, 4096));
  Gate gate;
  OK(simLaunchHostFunc(nullptr, Gate::wait, &gate));
  const AddArguments arguments{device, 1, 1024};
  const simLaunchConfig config = on(nullptr);
  OK(simLaunchKernel(&config, add, &arguments, sizeof(arguments)));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate.open = true;
  });
  OK(simFree(device)); // returns only when the kernel has run
  CHECK(gate.open.load());
  OK(simStreamQuery(nullptr));
  opener.join();
}

TEST(events_order_streams) {
  simStream_t a = nullptr, b = nullptr;
  simEvent_t event = nullptr;
  OK(simStreamCreate(&a));
  OK(simStreamCreate(&b));
  OK(simEventCreateWithFlags(&event, simEventDisableTiming));
  OK(simEventQuery(event)); // never recorded: complete
  OK(simStreamWaitEvent(b, event, 0));
  Gate gate;
  std::atomic<int> done{0};
  OK(simLaunchHostFunc(a, Gate::wait, &gate));
  OK(simEventRecord(event, a));
  OK(simStreamWaitEvent(b, event, 0));
  OK(simLaunchHostFunc(b, count, &done));
  OK(simEventDestroy(event)); // those who wait are not affected
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(done.load() == 0);
  gate.open = true;
  OK(simStreamSynchronize(b));
  CHECK(done.load() == 1);
  EXPECT(simErrorInvalidResourceHandle, simEventRecord(event, a));
}

TEST(a_wait_is_for_the_record_at_its_time) {
  simStream_t a = nullptr, b = nullptr;
  simEvent_t event = nullptr;
  OK(simStreamCreate(&a));
  OK(simStreamCreate(&b));
  OK(simEventCreate(&event));
  OK(simEventRecord(event, a));
  OK(simStreamWaitEvent(b, event, 0));
  Gate gate;
  OK(simLaunchHostFunc(a, Gate::wait, &gate));
  OK(simEventRecord(event, a)); // later: changes nothing for b
  OK(simStreamSynchronize(b));
  EXPECT(simErrorNotReady, simEventQuery(event));
  gate.open = true;
  OK(simEventSynchronize(event));
}

TEST(timing) {
  simEvent_t start = nullptr, end = nullptr, untimed = nullptr;
  OK(simEventCreate(&start));
  OK(simEventCreate(&end));
  OK(simEventCreateWithFlags(&untimed, simEventDisableTiming));
  float milliseconds = -1;
  EXPECT(simErrorInvalidResourceHandle, simEventElapsedTime(&milliseconds, start, end));
  OK(simEventRecord(start, nullptr));
  OK(simLaunchHostFunc(
      nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  OK(simEventRecord(end, nullptr));
  OK(simEventRecord(untimed, nullptr));
  EXPECT(simErrorNotReady, simEventElapsedTime(&milliseconds, start, end));
  OK(simEventSynchronize(end));
  OK(simEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 19.0f && milliseconds < 5000.0f);
  OK(simEventElapsedTime(&milliseconds, end, start));
  CHECK(milliseconds <= -19.0f);
  OK(simEventSynchronize(untimed));
  EXPECT(simErrorInvalidResourceHandle, simEventElapsedTime(&milliseconds, start, untimed));
  simEvent_t other = nullptr;
  OK(simSetDevice(1));
  OK(simEventCreate(&other));
  simStream_t zero = nullptr;
  OK(simDeviceGetDefaultStream(&zero, 0));
  EXPECT(simErrorInvalidResourceHandle, simEventRecord(other, zero));
}

void throwing(const simKernelContext* context, const void*) {
  if (context->blockIdx.x == context->gridDim.x - 1) {
    throw std::out_of_range("index 9 is out of range");
  }
}

void throwingNoException(const simKernelContext*, const void*) {
  throw 17;
}

TEST(an_exception_in_a_kernel_surfaces_once_and_the_device_works_on) {
  for (uint32_t grid : {1u, 16u}) {
    simLaunchConfig config = on(nullptr, grid, "thrower");
    OK(simLaunchKernel(&config, throwing, nullptr, 0));
    EXPECT(simErrorLaunchFailure, simStreamSynchronize(nullptr));
    CHECK(std::string(simGetLastErrorDetail()) == "thrower: index 9 is out of range");
    OK(simStreamSynchronize(nullptr));
  }
  simLaunchConfig config = on(nullptr, 1, "odd thrower");
  OK(simLaunchKernel(&config, throwingNoException, nullptr, 0));
  EXPECT(simErrorLaunchFailure, simDeviceSynchronize());
  CHECK(std::string(simGetLastErrorDetail()).rfind("odd thrower: ", 0) == 0);
  std::atomic<int> done{0};
  OK(simLaunchHostFunc(nullptr, count, &done));
  OK(simDeviceSynchronize());
  CHECK(done.load() == 1);
}

TEST(an_error_stays_on_its_stream_and_stops_the_next_launch) {
  simStream_t bad = nullptr, good = nullptr;
  OK(simStreamCreate(&bad));
  OK(simStreamCreate(&good));
  simLaunchConfig config = on(bad, 1, "thrower");
  OK(simLaunchKernel(&config, throwing, nullptr, 0));
  while (simStreamQuery(good) == simErrorNotReady) {
  }
  OK(simStreamSynchronize(good));
  std::atomic<int> done{0};
  simError_t error = simSuccess;
  for (int i = 0; i < 10000 && error == simSuccess; ++i) { // until the kernel has failed
    error = simLaunchHostFunc(bad, count, &done);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(error == simErrorLaunchFailure);
  OK(simStreamSynchronize(bad));
}

TEST(sticky_errors_do_not_go_away) {
  setenv("SIMDEV_STICKY_ERRORS", "1", 1);
  simLaunchConfig config = on(nullptr, 1, "thrower");
  OK(simLaunchKernel(&config, throwing, nullptr, 0));
  for (int i = 0; i < 3; ++i) {
    EXPECT(simErrorLaunchFailure, simDeviceSynchronize());
  }
  EXPECT(simErrorLaunchFailure, simLaunchKernel(&config, nothing, nullptr, 0));
  OK(simSetDevice(1));
  OK(simDeviceSynchronize());
}

TEST(blocking_launches_report_at_once) {
  setenv("SIMDEV_LAUNCH_BLOCKING", "1", 1);
  simLaunchConfig config = on(nullptr, 4, "thrower");
  EXPECT(simErrorLaunchFailure, simLaunchKernel(&config, throwing, nullptr, 0));
  OK(simLaunchKernel(&config, nothing, nullptr, 0));
  OK(simStreamQuery(nullptr));
}

TEST(device_code_must_not_wait) {
  std::atomic<int> refused{0};
  OK(simLaunchHostFunc(
      nullptr,
      [](void* data) {
        if (simDeviceSynchronize() == simErrorNotPermitted && simFree(nullptr) != simErrorUnknown) {
          static_cast<std::atomic<int>*>(data)->store(1);
        }
      },
      &refused));
  OK(simDeviceSynchronize());
  CHECK(refused.load() == 1);
}

struct Counted {
  std::atomic<int> runs{0};
  std::atomic<int> destroyed{0};
  static void run(void* data) { ++static_cast<Counted*>(data)->runs; }
  static void destroy(void* data) { ++static_cast<Counted*>(data)->destroyed; }
};

TEST(a_task_is_destroyed_once) {
  Counted counted;
  OK(simLaunchTask(nullptr, "task", Counted::run, Counted::destroy, &counted));
  OK(simStreamSynchronize(nullptr));
  CHECK(counted.runs == 1 && counted.destroyed == 1);
  EXPECT(
      simErrorInvalidResourceHandle,
      simLaunchTask(
          reinterpret_cast<simStream_t>(&counted), "task", Counted::run, Counted::destroy, &counted));
  CHECK(counted.runs == 1 && counted.destroyed == 2); // also when it could not be queued
}

TEST(an_idle_worker_uses_no_time) {
  OK(simLaunchHostFunc(nullptr, [](void*) {}, nullptr));
  OK(simDeviceSynchronize());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.05);
}

TEST(exit_with_work_pending_neither_hangs_nor_crashes) {
  const test::Death death = test::inChild([] {
    simStream_t stream = nullptr;
    OK(simStreamCreate(&stream));
    for (int i = 0; i < 500; ++i) {
      OK(simLaunchHostFunc(
          stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }, nullptr));
    }
  });
  CHECK(death.status == 0);
}

thread_local int releasesOfThisThread = 0;
std::atomic<int> releases{0};

// Wants to be called three times by each sleeping thread.
uint64_t countReleases() {
  releases.fetch_add(1);
  return ++releasesOfThisThread < 3 ? 1'000'000 : 0;
}

TEST(a_thread_that_sleeps_may_release_its_team) {
  const simTeam team{nullptr, countReleases};
  OK(simSetTeam(&team));
  simStream_t stream;
  OK(simStreamCreate(&stream));
  Gate gate;
  OK(simLaunchHostFunc(stream, Gate::wait, &gate));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate.open.store(true);
  });
  OK(simStreamSynchronize(stream)); // sleeps while the worker does not
  opener.join();
  CHECK(releasesOfThisThread == 3);
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (releases.load() < 6 && Clock::now() < end) { // now the worker has nothing to do
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(releases.load() == 6);

  // The next sleep begins anew, and without a function there is nothing to call.
  std::atomic<int> done{0};
  OK(simLaunchHostFunc(stream, count, &done));
  OK(simStreamSynchronize(stream));
  const simTeam none{};
  OK(simSetTeam(&none));
  const int before = releases.load();
  OK(simLaunchHostFunc(stream, count, &done));
  OK(simStreamSynchronize(stream));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(done.load() == 2);
  CHECK(releases.load() <= before + 1); // one may have been under way
  CHECK(simSetTeam(nullptr) == simErrorInvalidValue);
}

std::atomic<bool> teamIsThere{false};
thread_local bool isMember = false;

int runWithMember(void (*body)(void*), void* data) {
  if (!teamIsThere.load()) {
    return 0;
  }
  std::thread member([&] {
    isMember = true;
    body(data);
  });
  body(data);
  member.join();
  return 1;
}

struct Shares {
  std::atomic<int> blocks[256] = {};
  std::atomic<int> byOwner{0};
  std::atomic<int> byMember{0};
};

// Each waits until the other has come, so that none does all the work.
void share(const simKernelContext* context, const void* arguments) {
  auto& shares = **static_cast<Shares* const*>(arguments);
  shares.blocks[context->blockIdx.x].fetch_add(1);
  (isMember ? shares.byMember : shares.byOwner).fetch_add(1);
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (teamIsThere.load() && (shares.byOwner.load() == 0 || shares.byMember.load() == 0) &&
         Clock::now() < end) {
    std::this_thread::yield();
  }
  if (isMember) {
    simKernelFail("a member's failure");
  }
}

TEST(a_team_shares_out_the_blocks_of_a_launch) {
  const simTeam team{runWithMember, nullptr};
  OK(simSetTeam(&team));
  simStream_t stream;
  OK(simStreamCreate(&stream));
  Shares shares;
  Shares* const argument = &shares;
  const auto launch = [&] {
    const simLaunchConfig config{{256, 1, 1}, {1, 1, 1}, stream, "share"};
    OK(simLaunchKernel(&config, share, &argument, sizeof argument));
    return simStreamSynchronize(stream);
  };
  OK(launch()); // there is none yet
  CHECK(shares.byMember.load() == 0);
  shares.byOwner.store(0);
  teamIsThere.store(true);
  CHECK(launch() == simErrorLaunchFailure);
  CHECK(shares.byOwner.load() > 0 && shares.byMember.load() > 0);
  for (const auto& runs : shares.blocks) {
    CHECK(runs.load() == 2);
  }
  teamIsThere.store(false);
  const simTeam none{};
  OK(simSetTeam(&none));
}

} // namespace

int main() {
  return test::main("streams");
}
