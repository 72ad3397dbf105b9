// The seam: what a chip must provide to be a torch_simdev device.
//
// Lives here: the abstract Driver and the plain types that cross it.  Does not live here: anything about how
// PyTorch uses a device (csrc/runtime, csrc/aten) or how a chip works inside (csrc/libsimdev, a vendor's SDK).
//
// A port implements this one class over the vendor's SDK in a new `*_driver.cpp` and adds a row to the table in
// driver.cpp.  Three rules hold for every method:
//   - The device is an argument.  "Current device" and "current stream" are PyTorch's notions and stay above.
//   - A failure is a thrown c10::AcceleratorError naming the SDK's error, unless the method says otherwise.
//   - Every method may be called from any thread at any time and never takes the Python GIL.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace simdev {

class DelegateDriver; // delegate_driver.h

// Opaque to everything above the seam.  They are what `torch.Stream.native_handle` shows to the user, so make
// them the SDK's own handle types (simStream_t, cudaStream_t, ...) and not wrappers.
using StreamHandle = void*;
using EventHandle = void*;
using GraphHandle = void*;
using GraphExecHandle = void*;

struct DeviceProperties {
  std::string name; // shown by torch.simdev.get_device_name()
  std::string driver; // the driver that serves the device: "simulator", "cuda", ...
  std::string uuid; // stable across processes
  int major = 0; // compute capability
  int minor = 0;
  int multiProcessorCount = 0; // compute threads of the simulated chip, SMs of a GPU
  size_t totalMemory = 0; // bytes
};

struct MemoryInfo {
  size_t free = 0; // bytes that allocate() could still hand out in total
  size_t total = 0; // capacity in bytes
};

struct PointerInfo {
  enum class Kind : uint8_t { Device, PinnedHost };
  Kind kind = Kind::Device;
  c10::DeviceIndex device = -1; // -1 for pinned host memory
  void* base = nullptr; // start of the allocation the pointer lies in
  size_t size = 0; // bytes of that allocation
};

enum class MemcpyKind : uint8_t { HostToDevice, DeviceToHost, DeviceToDevice };

enum class CaptureStatus : uint8_t { None, Active, Invalidated };

struct CaptureInfo {
  CaptureStatus status = CaptureStatus::None;
  uint64_t id = 0; // shared by all streams of one capture and never used again; 0 for none
};

// Work that ATen's own kernels do on the device: a closure run once, in stream order.
//
// Under the simulator the stream's worker calls run(); under a GPU driver launch() calls it at once on the
// calling thread with the stream made current, since what it calls are themselves asynchronous launches.
// A captured Task runs once per replay and is destroyed with the graph, so run() must not consume its state.
class Task {
 public:
  virtual ~Task() = default;
  // May throw: the driver reports the exception at the stream's next launch or synchronisation, prefixed by name().
  virtual void run() = 0;
  // The operator, "aten::add.Tensor".  Must outlive the Task: errors are reported after it is gone.
  virtual const char* name() const noexcept = 0;
};

// One block of a native kernel's grid.  Blocks of a launch run concurrently and in no order.
struct KernelContext {
  uint32_t block = 0; // this block's index, 0 <= block < grid
  uint32_t grid = 1; // number of blocks in the launch
};

// A kernel written against the chip's own launch call: plain code, no PyTorch, called once per block.
using KernelFunction = void (*)(const KernelContext& context, const void* arguments);

class Driver {
 public:
  virtual ~Driver() = default;

  // --- What the chip is -----------------------------------------------------------------------------------

  // The value of SIMDEV_DRIVER that selects this driver.
  virtual const char* name() const noexcept = 0;
  // The device type whose ATen kernels run on kernelPointer() memory: CPU for the simulator, CUDA for a GPU.
  virtual c10::DeviceType kernelDeviceType() const noexcept = 0;
  // Whether launchKernel() works.  If not, the operator layer serves every operator with Tasks.
  virtual bool hasNativeKernels() const noexcept = 0;
  // Not for a port: a driver over a device that PyTorch already has returns itself (delegate_driver.h).
  virtual DelegateDriver* delegate() noexcept { return nullptr; }

  // --- Devices --------------------------------------------------------------------------------------------

  // Never throws and initialises nothing: it is called by `torch.simdev.is_available()` in processes that will fork.
  virtual int deviceCount() noexcept = 0;
  virtual DeviceProperties deviceProperties(c10::DeviceIndex device) = 0;
  // Blocks until all streams of the device are idle, then throws the first error any of them met.
  virtual void synchronizeDevice(c10::DeviceIndex device) = 0;
  virtual bool canAccessPeer(c10::DeviceIndex device, c10::DeviceIndex peer) = 0;
  // Lets kernels of `device` use memory of `peer`.  Enabling twice is not an error.
  virtual void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) = 0;
  // True in a forked child of a process that had initialised the chip: nothing works there.
  virtual bool isInBadFork() const noexcept = 0;

  // --- Memory ---------------------------------------------------------------------------------------------

  // Returns nullptr when the capacity is exhausted, so that the caching allocator can flush and retry.
  // The result is aligned to at least 512 bytes and must fault, not read garbage, when the host dereferences it.
  virtual void* allocate(c10::DeviceIndex device, size_t bytes) = 0;
  // Work that still uses the memory finishes first (implicit synchronisation, as cudaFree).  Errors are dropped.
  virtual void deallocate(c10::DeviceIndex device, void* pointer) noexcept = 0;
  virtual MemoryInfo memoryInfo(c10::DeviceIndex device) = 0;
  // Page-locked host memory: copies to and from it need no staging and overlap with the host.
  virtual void* allocateHost(size_t bytes) = 0; // nullptr when exhausted
  virtual void deallocateHost(void* pointer) noexcept = 0;
  // std::nullopt for memory the driver does not know (ordinary host memory).  Must be cheap; initialises nothing.
  virtual std::optional<PointerInfo> pointerInfo(const void* pointer) noexcept = 0;
  // Where code that runs on `device` finds the memory behind a device pointer.  Identity on a GPU; the
  // simulator adds the window's offset.  Called several times per operator: keep it to a few instructions.
  virtual void* kernelPointer(c10::DeviceIndex device, void* pointer) const noexcept = 0;

  // --- Copies, in stream order ------------------------------------------------------------------------------

  // DeviceToDevice pointers may lie on different devices.  A pageable host source is read before the call returns; a
  // pageable host destination is complete when the call returns; pinned memory is used asynchronously.  A capture
  // refuses pageable memory, since it can keep neither promise.
  virtual void
  memcpyAsync(void* dst, const void* src, size_t bytes, MemcpyKind kind, StreamHandle stream) = 0;
  virtual void memsetAsync(void* dst, int value, size_t bytes, StreamHandle stream) = 0;

  // --- Streams --------------------------------------------------------------------------------------------

  // The device's default stream: a stream like any other, owned by the driver.
  virtual StreamHandle defaultStream(c10::DeviceIndex device) = 0;
  // {least, greatest}: smaller is more urgent, as in CUDA ({0, -1} at least).
  virtual std::pair<int, int> streamPriorityRange() const noexcept = 0;
  virtual StreamHandle createStream(c10::DeviceIndex device, int priority) = 0;
  // Pending work is finished first, without blocking the caller.
  virtual void destroyStream(StreamHandle stream) noexcept = 0;
  virtual bool queryStream(StreamHandle stream) = 0;
  // Blocks until the stream is idle, then throws the first error it met since the last report.
  virtual void synchronizeStream(StreamHandle stream) = 0;
  // Later work of `stream` waits for the event's latest record.  An event never recorded is complete.
  virtual void streamWaitEvent(StreamHandle stream, EventHandle event) = 0;

  // --- Events ---------------------------------------------------------------------------------------------

  virtual EventHandle createEvent(c10::DeviceIndex device, bool timing) = 0;
  virtual void destroyEvent(EventHandle event) noexcept = 0;
  virtual void recordEvent(EventHandle event, StreamHandle stream) = 0;
  virtual bool queryEvent(EventHandle event) = 0;
  virtual void synchronizeEvent(EventHandle event) = 0;
  // Milliseconds between two recorded, completed timing events, by the device's monotonic clock.
  virtual double elapsedTime(EventHandle start, EventHandle end) = 0;

  // --- Launch ---------------------------------------------------------------------------------------------

  // Both throw a pending error of the stream instead of launching.
  virtual void launch(StreamHandle stream, std::unique_ptr<Task> task) = 0;
  // The argument bytes are copied before the call returns.  `name` has static lifetime.
  virtual void launchKernel(
      StreamHandle stream,
      const char* name,
      KernelFunction kernel,
      uint32_t grid,
      const void* arguments,
      size_t argumentBytes) = 0;

  // --- Graphs ---------------------------------------------------------------------------------------------

  // Between the two, work given to the stream becomes nodes of a graph, and so does that of streams which wait for an
  // event recorded in the capture.  What would have to wait for captured work throws and invalidates the capture.
  virtual void beginCapture(StreamHandle stream) = 0;
  // Throws for an invalidated capture; the streams are back to normal all the same.
  virtual GraphHandle endCapture(StreamHandle stream) = 0;
  virtual CaptureInfo captureInfo(StreamHandle stream) = 0;
  virtual size_t graphNodeCount(GraphHandle graph) = 0;
  virtual GraphExecHandle instantiateGraph(GraphHandle graph) = 0;
  virtual void launchGraph(GraphExecHandle graph, StreamHandle stream) = 0;
  virtual void destroyGraph(GraphHandle graph) noexcept = 0;
  virtual void destroyGraphExec(GraphExecHandle graph) noexcept = 0;
  // Writes the graph in DOT format.
  virtual void dumpGraph(GraphHandle graph, const std::string& path) = 0;
};

// The driver chosen by SIMDEV_DRIVER (auto, simulator, cuda).  The choice is made once, at the first call; an unknown or
// unavailable name throws, naming the possible values, and the next call tries again.
Driver& driver();
// The driver if it has been chosen; nullptr before.
Driver* chosenDriver() noexcept;

} // namespace simdev
