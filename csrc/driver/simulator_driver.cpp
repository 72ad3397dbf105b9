// The driver over libsimdev.
//
// Each method is the SDK's call of the same meaning, with errors turned into exceptions.  A vendor's driver
// reads the same with the vendor's prefix in place of `sim`.  Does not live here: anything that holds for
// every chip.
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/compat.h"
#include "csrc/driver/driver.h"
#include "csrc/driver/openmp_team.h"
#include "csrc/libsimdev/simdev.h"

namespace simdev {

namespace {

constexpr int kMaxDevices = 64; // SIMDEV_DEVICE_COUNT's limit

// What the SDK says about a failed call, as one sentence.
std::string describe(simError_t error) {
  const std::string detail = simGetLastErrorDetail();
  if (error == simErrorLaunchFailure) {
    std::string text = std::string("simdev error: ") + simGetErrorString(error);
    if (!detail.empty()) {
      text += " in " + detail;
    }
    const char* const blocking = std::getenv("SIMDEV_LAUNCH_BLOCKING");
    if (blocking == nullptr || std::strcmp(blocking, "1") != 0) {
      text +=
          " (reported asynchronously at a later call; set SIMDEV_LAUNCH_BLOCKING=1 to see the operator that "
          "failed)";
    }
    return text;
  }
  if (error == simErrorBadFork) {
    return "Cannot re-initialize simdev in forked subprocess. To use simdev with multiprocessing, you must "
           "use the 'spawn' start method";
  }
  return std::string("simdev error: ") + simGetErrorString(error) + (detail.empty() ? "" : ": ") + detail;
}

[[noreturn]] void raise(simError_t error, const char* call) {
  std::string text = describe(error);
  simGetLastError(); // it is the exception's now
  throw c10::AcceleratorError({call, __FILE__, __LINE__}, static_cast<int32_t>(error), std::move(text));
}

// What ATen's kernels warn of on a stream's worker is said by the host's next call, as their errors are: only
// there does Python hear it.
class TaskWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(warning);
    any_.store(true, std::memory_order_relaxed);
  }

  void report() {
    if (C10_LIKELY(!any_.load(std::memory_order_relaxed))) {
      return;
    }
    std::vector<c10::Warning> warnings;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      warnings.swap(kept_);
      any_.store(false, std::memory_order_relaxed);
    }
    for (const c10::Warning& warning : warnings) {
      c10::warn(warning);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Warning> kept_;
  std::atomic<bool> any_{false};
};

TaskWarnings& taskWarnings() {
  static auto* const warnings = new TaskWarnings; // workers may outlive static objects
  return *warnings;
}

inline void check(simError_t error, const char* call) {
  taskWarnings().report();
  if (C10_UNLIKELY(error != simSuccess)) {
    raise(error, call);
  }
}

// For calls that answer a question: true for success, false for simErrorNotReady.
inline bool ready(simError_t error, const char* call) {
  if (error == simErrorNotReady) {
    return false;
  }
  check(error, call);
  return true;
}

// For calls that must not throw: destructors cannot do anything about a failure.
inline void ignore(simError_t error) noexcept {
  if (error != simSuccess) {
    simGetLastError();
  }
}

#define SIM_CHECK(call) check(call, __func__)

// The SDK's current device for the calls that take none.
class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex device) {
    SIM_CHECK(simGetDevice(&previous_));
    changed_ = previous_ != device;
    if (changed_) {
      SIM_CHECK(simSetDevice(device));
    }
  }
  ~DeviceScope() {
    if (changed_) {
      ignore(simSetDevice(previous_));
    }
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

simStream_t toStream(StreamHandle stream) {
  return static_cast<simStream_t>(stream);
}
simEvent_t toEvent(EventHandle event) {
  return static_cast<simEvent_t>(event);
}

void runTask(void* data) {
  const c10::WarningUtils::WarningHandlerGuard guard(&taskWarnings());
  try {
    static_cast<Task*>(data)->run();
  } catch (const std::exception& error) {
    simKernelFail(compat::message(error).c_str());
  }
}

void destroyTask(void* data) {
  delete static_cast<Task*>(data);
}

// The SDK's kernels get more context than ours; the function to call travels in front of its arguments.
struct KernelHeader {
  alignas(16) KernelFunction kernel;
};

void runKernel(const simKernelContext* context, const void* arguments) {
  const auto* const header = static_cast<const KernelHeader*>(arguments);
  header->kernel(KernelContext{context->blockIdx.x, context->gridDim.x}, header + 1);
}

class SimulatorDriver final : public Driver {
 public:
  SimulatorDriver() {
    const simTeam team{runOnTeam, releaseTeam};
    SIM_CHECK(simSetTeam(&team));
  }

  // --- What the chip is ---

  const char* name() const noexcept override { return "simulator"; }
  c10::DeviceType kernelDeviceType() const noexcept override { return c10::DeviceType::CPU; }
  bool hasNativeKernels() const noexcept override { return true; }

  // --- Devices ---

  int deviceCount() noexcept override {
    int count = 0;
    ignore(simGetDeviceCount(&count));
    return count;
  }

  DeviceProperties deviceProperties(c10::DeviceIndex device) override {
    simDeviceProp properties;
    SIM_CHECK(simGetDeviceProperties(&properties, device));
    DeviceProperties result;
    result.name = properties.name;
    result.driver = name();
    result.major = properties.major;
    result.minor = properties.minor;
    result.multiProcessorCount = properties.multiProcessorCount;
    result.totalMemory = properties.totalGlobalMem;
    for (size_t i = 0; i < sizeof properties.uuid; ++i) {
      constexpr const char* kDigits = "0123456789abcdef";
      result.uuid += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
      result.uuid += kDigits[properties.uuid[i] >> 4];
      result.uuid += kDigits[properties.uuid[i] & 15];
    }
    return result;
  }

  void synchronizeDevice(c10::DeviceIndex device) override {
    const DeviceScope scope(device);
    SIM_CHECK(simDeviceSynchronize());
  }

  bool canAccessPeer(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    int can = 0;
    SIM_CHECK(simDeviceCanAccessPeer(&can, device, peer));
    return can != 0;
  }

  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    const DeviceScope scope(device);
    const simError_t error = simDeviceEnablePeerAccess(peer, 0);
    if (error == simErrorPeerAccessAlreadyEnabled) {
      ignore(error);
      return;
    }
    SIM_CHECK(error);
  }

  bool isInBadFork() const noexcept override {
    simRuntimeState state = simRuntimeUninitialized;
    ignore(simRuntimeGetState(&state));
    return state == simRuntimeBadFork;
  }

  // --- Memory ---

  void* allocate(c10::DeviceIndex device, size_t bytes) override {
    const DeviceScope scope(device);
    std::call_once(windowsKnown_, [this] { readWindows(); });
    void* pointer = nullptr;
    return allocated(simMalloc(&pointer, bytes), __func__) ? pointer : nullptr;
  }

  void deallocate(c10::DeviceIndex, void* pointer) noexcept override { ignore(simFree(pointer)); }

  MemoryInfo memoryInfo(c10::DeviceIndex device) override {
    const DeviceScope scope(device);
    MemoryInfo info;
    SIM_CHECK(simMemGetInfo(&info.free, &info.total));
    return info;
  }

  void* allocateHost(size_t bytes) override {
    void* pointer = nullptr;
    return allocated(simMallocHost(&pointer, bytes), __func__) ? pointer : nullptr;
  }

  void deallocateHost(void* pointer) noexcept override { ignore(simFreeHost(pointer)); }

  std::optional<PointerInfo> pointerInfo(const void* pointer) noexcept override {
    simPointerAttributes attributes;
    ignore(simPointerGetAttributes(&attributes, pointer));
    if (attributes.type == simMemoryTypeUnregistered) {
      return std::nullopt;
    }
    return PointerInfo{
        attributes.type == simMemoryTypeDevice ? PointerInfo::Kind::Device : PointerInfo::Kind::PinnedHost,
        static_cast<c10::DeviceIndex>(attributes.device),
        attributes.base,
        attributes.size};
  }

  void* kernelPointer(c10::DeviceIndex device, void* pointer) const noexcept override {
    const Window& window = windows_[device];
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (C10_LIKELY(address - window.base < window.size)) {
      return reinterpret_cast<void*>(address + window.offset);
    }
    // A peer's memory; for what cannot be reached the pointer stays what it is, one that faults.
    void* const translated = simTranslatePointer(device, pointer);
    return translated != nullptr ? translated : pointer;
  }

  // --- Copies ---

  void memcpyAsync(void* dst, const void* src, size_t bytes, MemcpyKind kind, StreamHandle stream) override {
    constexpr simMemcpyKind kKinds[] = {
        simMemcpyHostToDevice, simMemcpyDeviceToHost, simMemcpyDeviceToDevice};
    if (kind != MemcpyKind::DeviceToDevice) {
      refusePageableInCapture(kind == MemcpyKind::HostToDevice ? src : dst, stream);
    }
    SIM_CHECK(simMemcpyAsync(dst, src, bytes, kKinds[static_cast<size_t>(kind)], toStream(stream)));
  }

  void memsetAsync(void* dst, int value, size_t bytes, StreamHandle stream) override {
    SIM_CHECK(simMemsetAsync(dst, value, bytes, toStream(stream)));
  }

  // --- Streams ---

  StreamHandle defaultStream(c10::DeviceIndex device) override {
    simStream_t stream = nullptr;
    SIM_CHECK(simDeviceGetDefaultStream(&stream, device));
    return stream;
  }

  std::pair<int, int> streamPriorityRange() const noexcept override {
    int least = 0, greatest = 0;
    ignore(simDeviceGetStreamPriorityRange(&least, &greatest));
    return {least, greatest};
  }

  StreamHandle createStream(c10::DeviceIndex device, int priority) override {
    const DeviceScope scope(device);
    simStream_t stream = nullptr;
    SIM_CHECK(simStreamCreateWithPriority(&stream, simStreamNonBlocking, priority));
    return stream;
  }

  void destroyStream(StreamHandle stream) noexcept override { ignore(simStreamDestroy(toStream(stream))); }
  bool queryStream(StreamHandle stream) override { return ready(simStreamQuery(toStream(stream)), __func__); }
  void synchronizeStream(StreamHandle stream) override { SIM_CHECK(simStreamSynchronize(toStream(stream))); }

  void streamWaitEvent(StreamHandle stream, EventHandle event) override {
    SIM_CHECK(simStreamWaitEvent(toStream(stream), toEvent(event), 0));
  }

  // --- Events ---

  EventHandle createEvent(c10::DeviceIndex device, bool timing) override {
    const DeviceScope scope(device);
    simEvent_t event = nullptr;
    SIM_CHECK(simEventCreateWithFlags(&event, timing ? simEventDefault : simEventDisableTiming));
    return event;
  }

  void destroyEvent(EventHandle event) noexcept override { ignore(simEventDestroy(toEvent(event))); }

  void recordEvent(EventHandle event, StreamHandle stream) override {
    SIM_CHECK(simEventRecord(toEvent(event), toStream(stream)));
  }

  bool queryEvent(EventHandle event) override { return ready(simEventQuery(toEvent(event)), __func__); }
  void synchronizeEvent(EventHandle event) override { SIM_CHECK(simEventSynchronize(toEvent(event))); }

  double elapsedTime(EventHandle start, EventHandle end) override {
    float milliseconds = 0; // asked for its errors only: a float cannot tell microseconds from hours apart
    uint64_t from = 0, to = 0;
    SIM_CHECK(simEventElapsedTime(&milliseconds, toEvent(start), toEvent(end)));
    SIM_CHECK(simEventGetTimestamp(&from, toEvent(start)));
    SIM_CHECK(simEventGetTimestamp(&to, toEvent(end)));
    return static_cast<double>(static_cast<int64_t>(to - from)) * 1e-6;
  }

  // --- Launch ---

  void launch(StreamHandle stream, std::unique_ptr<Task> task) override {
    const char* const name = task->name();
    SIM_CHECK(simLaunchTask(toStream(stream), name, runTask, destroyTask, task.release()));
  }

  void launchKernel(
      StreamHandle stream,
      const char* name,
      KernelFunction kernel,
      uint32_t grid,
      const void* arguments,
      size_t argumentBytes) override {
    const size_t bytes = sizeof(KernelHeader) + argumentBytes;
    alignas(KernelHeader) unsigned char onStack[512];
    std::vector<unsigned char> onHeap;
    unsigned char* packed = onStack;
    if (C10_UNLIKELY(bytes > sizeof onStack)) {
      onHeap.resize(bytes);
      packed = onHeap.data();
    }
    std::memcpy(packed, &kernel, sizeof kernel);
    std::memcpy(packed + sizeof(KernelHeader), arguments, argumentBytes);
    const simLaunchConfig config = {{grid, 1, 1}, {1, 1, 1}, toStream(stream), name};
    SIM_CHECK(simLaunchKernel(&config, runKernel, packed, bytes));
  }

  // --- Graphs ---

  void beginCapture(StreamHandle stream) override {
    // Relaxed: the allocator above may have to ask for memory while it captures.
    SIM_CHECK(simStreamBeginCapture(toStream(stream), simStreamCaptureModeRelaxed));
  }

  GraphHandle endCapture(StreamHandle stream) override {
    simGraph_t graph = nullptr;
    SIM_CHECK(simStreamEndCapture(toStream(stream), &graph));
    return graph;
  }

  CaptureInfo captureInfo(StreamHandle stream) override {
    simStreamCaptureStatus status = simStreamCaptureStatusNone;
    unsigned long long id = 0;
    SIM_CHECK(simStreamGetCaptureInfo(toStream(stream), &status, &id));
    constexpr CaptureStatus kStatus[] = {
        CaptureStatus::None, CaptureStatus::Active, CaptureStatus::Invalidated};
    return {kStatus[status], id};
  }

  size_t graphNodeCount(GraphHandle graph) override {
    size_t nodes = 0;
    SIM_CHECK(simGraphGetSize(static_cast<simGraph_t>(graph), &nodes, nullptr));
    return nodes;
  }

  GraphExecHandle instantiateGraph(GraphHandle graph) override {
    simGraphExec_t exec = nullptr;
    SIM_CHECK(simGraphInstantiate(&exec, static_cast<simGraph_t>(graph), 0));
    return exec;
  }

  void launchGraph(GraphExecHandle graph, StreamHandle stream) override {
    SIM_CHECK(simGraphLaunch(static_cast<simGraphExec_t>(graph), toStream(stream)));
  }

  void destroyGraph(GraphHandle graph) noexcept override {
    ignore(simGraphDestroy(static_cast<simGraph_t>(graph)));
  }

  void destroyGraphExec(GraphExecHandle graph) noexcept override {
    ignore(simGraphExecDestroy(static_cast<simGraphExec_t>(graph)));
  }

  void dumpGraph(GraphHandle graph, const std::string& path) override {
    SIM_CHECK(simGraphDebugDotPrint(static_cast<simGraph_t>(graph), path.c_str(), 0));
  }

 private:
  // The SDK would record the address, and each replay would read or write whatever is there by then.
  void refusePageableInCapture(const void* host, StreamHandle stream) {
    if (C10_UNLIKELY(captureInfo(stream).status != CaptureStatus::None) && !pointerInfo(host).has_value()) {
      try {
        synchronizeStream(stream); // throws, and spoils the capture as any other wait for its work would
      } catch (c10::Error& error) {
        error.add_context("copying from or to pageable host memory waits for the stream");
        throw;
      }
    }
  }

  struct Window {
    uintptr_t base = 0;
    size_t size = 0;
    ptrdiff_t offset = 0;
  };

  // False when memory is exhausted, which is the caller's to handle.
  static bool allocated(simError_t error, const char* call) {
    if (error == simErrorMemoryAllocation) {
      ignore(error);
      return false;
    }
    check(error, call);
    return true;
  }

  // Before the first device pointer exists, hence before kernelPointer() is asked about one.
  void readWindows() {
    int count = 0;
    SIM_CHECK(simGetDeviceCount(&count));
    for (int device = 0; device < count; ++device) {
      void* base = nullptr;
      SIM_CHECK(simDeviceGetMemoryWindow(&base, &windows_[device].size, device));
      SIM_CHECK(simDeviceGetMemoryOffset(&windows_[device].offset, device));
      windows_[device].base = reinterpret_cast<uintptr_t>(base);
    }
  }

  std::once_flag windowsKnown_;
  std::array<Window, kMaxDevices> windows_;
};

} // namespace

Driver& simulatorDriver() {
  static auto* const driver = new SimulatorDriver; // used until the very end of the process
  return *driver;
}

} // namespace simdev
