// What it costs to hand over work, to wait for it, and to copy, on this machine.
//
// Every figure is the median of several runs.  `make bench` runs it; nothing is asserted here.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "simdev.h"

namespace {

void check(simError_t error) {
  if (error != simSuccess) {
    fprintf(stderr, "%s: %s\n", simGetErrorName(error), simGetLastErrorDetail());
    exit(1);
  }
}

double seconds(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Body>
double median(int runs, Body&& body) {
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    times.push_back(body());
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[runs / 2];
}

// Seconds per call of `once`, over `count` calls; `before` and `after` are not measured.
template <class Once, class After>
double perCall(int count, Once&& once, After&& after) {
  return median(15, [&] {
    const double start = seconds();
    for (int i = 0; i < count; ++i) {
      once();
    }
    const double time = (seconds() - start) / count;
    after();
    return time;
  });
}

void emptyKernel(const simKernelContext*, const void*) {}
void emptyTask(void*) {}

void report(const char* what, double value, const char* unit) {
  printf("%-64s %10.1f %s\n", what, value, unit);
}

} // namespace

int main() {
  constexpr int kCount = 500; // fits into the queue
  simStream_t stream, other;
  check(simStreamCreate(&stream));
  check(simStreamCreate(&other));
  simLaunchConfig config = {{1, 1, 1}, {1, 1, 1}, stream, "empty"};
  struct {
    void* pointers[3];
    size_t sizes[4];
  } arguments = {};
  const auto drain = [&] { check(simStreamSynchronize(stream)); };
  const auto launch = [&] { check(simLaunchKernel(&config, emptyKernel, &arguments, sizeof arguments)); };
  launch();
  drain();
  const double clockCost = median(1000, [] {
    const double start = seconds();
    return seconds() - start;
  });

  // As a program does that has something else to do between two launches.
  report(
      "launch a kernel, 56 bytes of arguments, one every 2 us",
      median(
          2000,
          [&] {
            const double start = seconds();
            launch();
            const double time = seconds() - start;
            while (seconds() - start < 2e-6) {
            }
            return time - clockCost;
          }) *
          1e9,
      "ns");
  drain();
  report("launch a kernel, one after the other", perCall(kCount, launch, drain) * 1e9, "ns");
  report(
      "launch a task",
      perCall(
          kCount, [&] { check(simLaunchTask(stream, "t", emptyTask, nullptr, nullptr)); }, drain) *
          1e9,
      "ns");
  report(
      "launch and synchronise, awake worker",
      perCall(
          kCount,
          [&] {
            launch();
            drain();
          },
          drain) *
          1e6,
      "us");
  report(
      "launch and synchronise, worker asleep (incl. 1 ms pause)",
      median(
          15,
          [&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            const double start = seconds();
            launch();
            drain();
            return seconds() - start;
          }) *
          1e6,
      "us");
  report(
      "1000 launches, then synchronise: per launch",
      median(
          15,
          [&] {
            const double start = seconds();
            for (int i = 0; i < 1000; ++i) {
              launch();
            }
            drain();
            return (seconds() - start) / 1000;
          }) *
          1e9,
      "ns");

  simEvent_t plain, timed;
  check(simEventCreateWithFlags(&plain, simEventDisableTiming));
  check(simEventCreate(&timed));
  report(
      "record an event without timing",
      perCall(
          kCount, [&] { check(simEventRecord(plain, stream)); }, drain) *
          1e9,
      "ns");
  report(
      "record an event with timing",
      perCall(
          kCount, [&] { check(simEventRecord(timed, stream)); }, drain) *
          1e9,
      "ns");
  report("query an event", perCall(kCount, [&] { check(simEventQuery(plain)); }, drain) * 1e9, "ns");
  report(
      "create and destroy an event",
      perCall(
          kCount,
          [&] {
            simEvent_t event;
            check(simEventCreateWithFlags(&event, simEventDisableTiming));
            check(simEventDestroy(event));
          },
          drain) *
          1e9,
      "ns");
  report(
      "launch, record, make another stream wait, launch there, both",
      perCall(
          kCount,
          [&] {
            config.stream = stream;
            launch();
            check(simEventRecord(plain, stream));
            check(simStreamWaitEvent(other, plain, 0));
            config.stream = other;
            launch();
            check(simStreamSynchronize(other));
          },
          drain) *
          1e6,
      "us");
  config.stream = stream;

  config.gridDim.x = 64;
  report(
      "launch 64 empty blocks and synchronise",
      perCall(
          kCount,
          [&] {
            launch();
            drain();
          },
          drain) *
          1e6,
      "us");
  config.gridDim.x = 1;

  void* device;
  check(simMalloc(&device, size_t{64} << 20));
  void* pointer;
  report(
      "translate a device pointer",
      perCall(
          kCount,
          [&] {
            pointer = simTranslatePointer(0, device);
            asm volatile("" ::"r"(pointer));
          },
          drain) *
          1e9,
      "ns");
  simPointerAttributes attributes;
  report(
      "attributes of a device pointer",
      perCall(
          kCount, [&] { check(simPointerGetAttributes(&attributes, device)); }, drain) *
          1e9,
      "ns");
  report(
      "attributes of a host pointer",
      perCall(
          kCount, [&] { check(simPointerGetAttributes(&attributes, &device)); }, drain) *
          1e9,
      "ns");
  report(
      "malloc and free 64 MiB",
      perCall(
          20,
          [&] {
            void* again;
            check(simMalloc(&again, size_t{64} << 20));
            check(simFree(again));
          },
          drain) *
          1e6,
      "us");

  float item = 0;
  report(
      "launch, then copy 4 bytes to pageable host memory",
      perCall(
          kCount,
          [&] {
            launch();
            check(simMemcpyAsync(&item, device, sizeof item, simMemcpyDeviceToHost, stream));
          },
          drain) *
          1e6,
      "us");
  report(
      "copy 4 bytes from pageable host memory to an idle stream",
      perCall(
          kCount,
          [&] { check(simMemcpyAsync(device, &item, sizeof item, simMemcpyHostToDevice, stream)); },
          drain) *
          1e9,
      "ns");

  for (const size_t bytes : {size_t{1} << 20, size_t{8} << 20, size_t{64} << 20}) {
    void *pinned, *target;
    check(simMallocHost(&pinned, bytes));
    check(simMallocHost(&target, bytes));
    std::vector<char> pageable(bytes, 1);
    memset(pinned, 1, bytes);
    memset(target, 1, bytes);
    check(simMemset(device, 1, bytes));
    const auto rate = [&](const char* what, auto&& copy) {
      char text[96];
      snprintf(text, sizeof text, "%s, %zu MiB", what, bytes >> 20);
      report(
          text,
          static_cast<double>(bytes) /
              median(
                  15,
                  [&] {
                    const double start = seconds();
                    copy();
                    return seconds() - start;
                  }) *
              1e-9,
          "GB/s");
    };
    const auto async = [&](void* dst, const void* src) {
      return [=] {
        check(simMemcpyAsync(dst, src, bytes, simMemcpyDefault, stream));
        check(simStreamSynchronize(stream));
      };
    };
    rate("memcpy", [&] { memcpy(target, pinned, bytes); });
    rate("copy pinned to device", async(device, pinned));
    rate("copy device to pinned", async(pinned, device));
    rate("copy pageable to device", async(device, pageable.data()));
    rate("copy device to pageable", async(pageable.data(), device));
    rate("memset of device memory", [&] {
      check(simMemsetAsync(device, 2, bytes, stream));
      check(simStreamSynchronize(stream));
    });
    check(simFreeHost(pinned));
    check(simFreeHost(target));
  }

  const double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  report("CPU use while idle", (seconds(CLOCK_PROCESS_CPUTIME_ID) - before) / 0.5 * 100, "%");
}
