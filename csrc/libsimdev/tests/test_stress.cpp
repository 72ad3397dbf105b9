// Eight host threads on eight streams of two devices: 100,000 mixed operations with events between them, a random
// schedule and failing kernels in between; the result is checked.
#include "test.h"

#include <atomic>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 8;
constexpr int kOperations = 100000;
constexpr int kElements = 256;

struct Arguments {
  uint32_t* data;
  uint32_t multiply;
  uint32_t add;
};

void mix(const simKernelContext* context, const void* args) {
  const auto& a = *static_cast<const Arguments*>(args);
  auto* data = static_cast<uint32_t*>(simLocalPointer(context, a.data));
  const uint32_t share = kElements / context->gridDim.x;
  for (uint32_t i = share * context->blockIdx.x; i < share * (context->blockIdx.x + 1); ++i) {
    data[i] = data[i] * a.multiply + a.add + i;
  }
}

void failing(const simKernelContext*, const void*) {
  throw std::runtime_error("injected");
}

// One thread's stream, its device buffer, and what the buffer must hold.
class Lane {
 public:
  explicit Lane(int index) : index_(index), device_(index % 2), random_(static_cast<unsigned>(index) + 1) {}

  void start() {
    OK(simSetDevice(device_));
    OK(simStreamCreateWithPriority(&stream_, 0, -(index_ % 3)));
    OK(simMalloc(reinterpret_cast<void**>(&data_), kElements * 4));
    OK(simMallocHost(reinterpret_cast<void**>(&pinned_), kElements * 4));
    OK(simMemset(data_, 0, kElements * 4));
    OK(simEventCreateWithFlags(&event, simEventDisableTiming));
    expected_.assign(kElements, 0);
  }

  void run(int operations, std::vector<Lane>& lanes) {
    OK(simSetDevice(device_));
    for (int i = 0; i < operations; ++i) {
      const uint32_t choice = random_() % 100;
      if (choice < 70) {
        launch();
      } else if (choice < 80) {
        upload();
      } else if (choice < 90) {
        OK(simEventRecord(event, stream_));
      } else if (choice < 97) {
        // Order against another lane, of any device; what it stands for is already queued, so this cannot deadlock.
        OK(simStreamWaitEvent(stream_, lanes[random_() % kThreads].event, 0));
      } else if (choice < 98) {
        fail();
      } else if (choice < 99) {
        churn();
      } else {
        check();
      }
    }
    check();
  }

  simEvent_t event = nullptr;

 private:
  void launch() {
    const Arguments arguments{data_, static_cast<uint32_t>(random_()) | 1u, static_cast<uint32_t>(random_())};
    const simLaunchConfig config{{1u << (random_() % 4), 1, 1}, {1, 1, 1}, stream_, "mix"};
    OK(simLaunchKernel(&config, mix, &arguments, sizeof(arguments)));
    for (uint32_t i = 0; i < kElements; ++i) {
      expected_[i] = expected_[i] * arguments.multiply + arguments.add + i;
    }
  }

  void upload() {
    std::vector<uint32_t> fresh(kElements);
    for (uint32_t& value : fresh) {
      value = static_cast<uint32_t>(random_());
    }
    OK(simMemcpyAsync(data_, fresh.data(), kElements * 4, simMemcpyHostToDevice, stream_));
    expected_ = fresh; // pageable: already read
  }

  void fail() {
    const simLaunchConfig config{{1, 1, 1}, {1, 1, 1}, stream_, "failing"};
    OK(simLaunchKernel(&config, failing, nullptr, 0));
    EXPECT(simErrorLaunchFailure, simStreamSynchronize(stream_));
  }

  void churn() {
    void* temporary = nullptr;
    OK(simMalloc(&temporary, 1 + random_() % 100000));
    OK(simMemsetAsync(temporary, 1, 1, stream_));
    OK(simFree(temporary));
  }

  void check() {
    OK(simMemcpyAsync(pinned_, data_, kElements * 4, simMemcpyDeviceToHost, stream_));
    OK(simStreamSynchronize(stream_));
    for (int i = 0; i < kElements; ++i) {
      CHECK(pinned_[i] == expected_[static_cast<size_t>(i)]);
    }
  }

  int index_;
  int device_;
  std::mt19937 random_;
  simStream_t stream_ = nullptr;
  uint32_t* data_ = nullptr;
  uint32_t* pinned_ = nullptr;
  std::vector<uint32_t> expected_;
};

TEST(eight_threads_on_eight_streams_of_two_devices) {
  std::vector<Lane> lanes;
  for (int i = 0; i < kThreads; ++i) {
    lanes.emplace_back(i);
    lanes.back().start();
  }
  std::vector<std::thread> threads;
  for (Lane& lane : lanes) {
    threads.emplace_back([&] { lane.run(kOperations / kThreads, lanes); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int device = 0; device < 2; ++device) {
    OK(simSetDevice(device));
    OK(simDeviceSynchronize());
  }
}

TEST(many_threads_on_one_stream) {
  static std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 2000; ++j) {
        OK(simLaunchHostFunc(nullptr, [](void*) { ++done; }, nullptr));
        if (j % 100 == 0) {
          OK(simStreamSynchronize(nullptr));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  OK(simDeviceSynchronize());
  CHECK(done.load() == 2000 * kThreads);
}

TEST(streams_and_events_come_and_go) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 150; ++j) {
        simStream_t stream = nullptr;
        simEvent_t event = nullptr;
        OK(simStreamCreate(&stream));
        OK(simEventCreate(&event));
        OK(simLaunchHostFunc(stream, [](void*) {}, nullptr));
        OK(simEventRecord(event, stream));
        OK(simStreamWaitEvent(nullptr, event, 0));
        OK(simEventDestroy(event));
        OK(simStreamDestroy(stream));
      }
      OK(simDeviceSynchronize());
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

} // namespace

int main() {
  return test::main("stress");
}
