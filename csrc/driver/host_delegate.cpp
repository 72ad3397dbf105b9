// A stand-in for a GPU in tests: the delegate driver over this machine's CPU (SIMDEV_DRIVER=delegate).
//
// Its kernels are ATen's for the CPU and run at once, so that streams are labels and events are points in time.  Several
// devices, streams, events, finite memory and native handles are told apart as a GPU tells them apart.  Does not live here:
// isolation, asynchrony or speed; that is the simulator's.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "csrc/compat.h"
#include "csrc/driver/delegate_driver.h"

namespace simdev {

namespace {

constexpr int kMaxDevices = 64;
// c10 allows one CPU only; its streams and devices go under a type that nobody has.
constexpr c10::DeviceType kGuardType = c10::DeviceType::MAIA;

int deviceCountFromEnvironment() {
  const char* const value = std::getenv("SIMDEV_DEVICE_COUNT");
  return value == nullptr || *value == '\0' ? 1 : std::clamp(std::atoi(value), 1, kMaxDevices);
}

using Clock = std::chrono::steady_clock;

struct HostEvent {
  Clock::time_point recorded;
  bool timing;
};

struct HostGuard final : c10::impl::DeviceGuardImplInterface {
  static inline thread_local c10::DeviceIndex currentDevice = 0;
  static inline thread_local std::array<c10::StreamId, kMaxDevices> currentStream{};

  static c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kGuardType, index), id);
  }

  c10::DeviceType type() const override { return kGuardType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kGuardType, std::exchange(currentDevice, device.index())};
  }
  c10::Device getDevice() const override { return {kGuardType, currentDevice}; }
  void setDevice(c10::Device device) const override { currentDevice = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { currentDevice = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(deviceCountFromEnvironment());
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  c10::Stream getStream(c10::Device device) const override {
    return stream(device.index(), currentStream[static_cast<size_t>(device.index())]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device.index(), 0); }
  // Of 32 for each priority, and odd, as CUDA's.
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    static std::atomic<uint32_t> next[kMaxDevices][4];
    const auto level = static_cast<size_t>(std::clamp(-priority, 0, 3));
    const uint32_t drawn = next[device.index()][level]++ % 32;
    return stream(device.index(), static_cast<c10::StreamId>(level * 32 + drawn) << 1 | 1);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::DeviceIndex index = next.device_index();
    return stream(index, std::exchange(currentStream[static_cast<size_t>(index)], next.id()));
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  // The default stream's is null, as CUDA's.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(
        stream.id() == 0 || (stream.id() & 1) == 0 ? stream.id() : stream.id() + 0x1000);
  }
#if SIMDEV_HAS_STREAM_IS_CAPTURING
  bool isStreamCapturing(const c10::Stream&) const override { return false; }
#endif
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag flag)
      const override {
    if (*event == nullptr) {
      *event = new HostEvent{{}, flag == c10::EventFlag::BACKEND_DEFAULT};
    }
    static_cast<HostEvent*>(*event)->recorded = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<HostEvent*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const auto* from = static_cast<HostEvent*>(start);
    const auto* to = static_cast<HostEvent*>(end);
    TORCH_CHECK(
        from->timing && to->timing, "Both events must be created with argument 'enable_timing=True'.");
    return std::chrono::duration<double, std::milli>(to->recorded - from->recorded).count();
  }
};

// Counts what is allocated through it; what the CPU's kernels allocate for themselves is theirs.
struct HostDeviceAllocator final : c10::DeviceAllocator {
  static constexpr size_t kTotal = size_t{1} << 36;

  c10::DataPtr allocate(size_t bytes) override {
    auto& device = devices[static_cast<size_t>(HostGuard::currentDevice)];
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        bytes <= kTotal,
        "CUDA out of memory. Tried to allocate ",
        bytes,
        " bytes of the stand-in's memory.");
    if (bytes == 0) {
      return {nullptr, c10::Device(c10::kCPU)};
    }
    auto* block = new Block{c10::GetCPUAllocator()->allocate(bytes), bytes, &device};
    device.increase(bytes);
    return {block->data.get(), block, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override { ++recorded; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    Device& device = devices[static_cast<size_t>(index)];
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = device.current;
    bytes.peak = device.peak;
    stats.num_sync_all_streams = recorded; // a place where the tests can see it
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    Device& device = devices[static_cast<size_t>(index)];
    device.peak = device.current.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return {kTotal - static_cast<size_t>(devices[static_cast<size_t>(index)].current), kTotal};
  }

 private:
  struct Device {
    std::atomic<int64_t> current{0};
    std::atomic<int64_t> peak{0};
    void increase(size_t bytes) {
      const int64_t now = current += static_cast<int64_t>(bytes);
      int64_t before = peak;
      while (now > before && !peak.compare_exchange_weak(before, now)) {
      }
    }
  };
  struct Block {
    c10::DataPtr data;
    size_t bytes;
    Device* device;
  };
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->device->current -= static_cast<int64_t>(block->bytes);
  }

  std::array<Device, kMaxDevices> devices;
  std::atomic<int64_t> recorded{0};
};

class HostDelegateDriver final : public DelegateDriver {
 public:
  const char* name() const noexcept override { return "delegate"; }
  c10::DeviceType type() const noexcept override { return c10::kCPU; }
  c10::Device device(c10::DeviceIndex) const noexcept override { return c10::Device(c10::kCPU); }
  c10::Device guardDevice(c10::DeviceIndex index) const noexcept override { return {kGuardType, index}; }
  const c10::impl::DeviceGuardImplInterface& guard() const override { return guard_; }
  c10::DeviceAllocator& deviceAllocator() override { return allocator_; }
  at::HostAllocator* hostAllocator() override { return nullptr; }
  bool hasPhiloxGenerators() const noexcept override { return false; }
  void initialize() override {}

  int deviceCount() noexcept override { return guard_.deviceCount(); }
  DeviceProperties deviceProperties(c10::DeviceIndex device) override {
    DeviceProperties properties;
    properties.name = "CPU " + std::to_string(device);
    properties.driver = name();
    properties.uuid = "host-" + std::to_string(device);
    properties.multiProcessorCount = 1;
    properties.totalMemory = HostDeviceAllocator::kTotal;
    return properties;
  }
  bool canAccessPeer(c10::DeviceIndex device, c10::DeviceIndex peer) override { return device != peer; }
  std::pair<int, int> streamPriorityRange() const noexcept override { return {0, -3}; }
  bool isPinned(const void* pointer) override { return ownsPointer(pointer); }
  void sleep(StreamHandle, int64_t nanoseconds) override {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
  }
  // The CPU's hooks know no pointers.
  std::optional<PointerInfo> pointerInfo(const void*) noexcept override { return std::nullopt; }

 private:
  HostGuard guard_;
  HostDeviceAllocator allocator_;
};

} // namespace

Driver& hostDelegateDriver() {
  static auto* const driver = new HostDelegateDriver;
  return *driver;
}

} // namespace simdev
