// A driver over a device that PyTorch knows already: its memory, streams, events and kernels, under our device's name.
//
// Lives here: the driver, written against c10's device-generic interfaces alone (guard, allocators), so that it needs
// nobody's SDK.  Does not live here: which device it is (cuda_driver.cpp; host_delegate.cpp, the stand-in for tests).
//
// The upper layers ask driver().delegate() in the few places where a delegate changes who owns what: its current stream is
// the current stream, its allocators are the allocators, and its kernels run at once on the calling thread.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/driver/driver.h"

namespace at {
struct HostAllocator;
} // namespace at

namespace simdev {

class DelegateDriver : public Driver {
 public:
  DelegateDriver* delegate() noexcept final { return this; }

  // --- What a delegate is ---------------------------------------------------------------------------------------

  virtual c10::DeviceType type() const noexcept = 0;
  // As the kernels' tensors name it: the CPU has no index.
  virtual c10::Device device(c10::DeviceIndex index) const noexcept { return {type(), index}; }
  // As the guard names it.
  virtual c10::Device guardDevice(c10::DeviceIndex index) const noexcept { return {type(), index}; }
  // The device behind our device `index`; the other way round is label().
  virtual const c10::impl::DeviceGuardImplInterface& guard() const = 0;
  virtual c10::DeviceAllocator& deviceAllocator() = 0;
  // For pinned memory; nullptr if the device has none.
  virtual at::HostAllocator* hostAllocator() = 0;
  virtual bool isPinned(const void* pointer);
  // Whether its generators are a seed and an offset, so that ours can be the same ones.
  virtual bool hasPhiloxGenerators() const noexcept = 0;
  // Starts the device.  Called without any lock held, from any thread, any number of times.
  virtual void initialize() = 0;

  // --- Streams: ours and the delegate's differ in the device type only ---------------------------------------------

  c10::Stream delegateStream(c10::DeviceIndex index, c10::StreamId id) const noexcept {
    return c10::Stream(c10::Stream::UNSAFE, guardDevice(index), id);
  }
  // What driver.h's methods take for that stream.
  StreamHandle streamHandle(c10::Stream stream);
  c10::StreamId createStreamId(c10::DeviceIndex index, int priority);
  int streamPriority(c10::Stream stream);
  // Keeps the stream busy.
  virtual void sleep(StreamHandle stream, int64_t nanoseconds) = 0;
  // The SDK's own handle.
  void* nativeStreamHandle(c10::Stream stream) const { return guard().getStreamNativeHandle(stream); }

  // --- Driver -------------------------------------------------------------------------------------------------------

  c10::DeviceType kernelDeviceType() const noexcept override { return type(); }
  bool hasNativeKernels() const noexcept override { return false; }
  void synchronizeDevice(c10::DeviceIndex device) override;
  // Peer access is the delegate's business: its copies and kernels enable what they need.
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {}
  bool isInBadFork() const noexcept override { return false; } // csrc/runtime/device.cpp knows

  void* allocate(c10::DeviceIndex device, size_t bytes) override;
  void deallocate(c10::DeviceIndex device, void* pointer) noexcept override;
  MemoryInfo memoryInfo(c10::DeviceIndex device) override;
  void* allocateHost(size_t bytes) override;
  void deallocateHost(void* pointer) noexcept override;
  std::optional<PointerInfo> pointerInfo(const void* pointer) noexcept override;
  void* kernelPointer(c10::DeviceIndex, void* pointer) const noexcept override { return pointer; }

  void memcpyAsync(void* dst, const void* src, size_t bytes, MemcpyKind kind, StreamHandle stream) override;
  void memsetAsync(void* dst, int value, size_t bytes, StreamHandle stream) override;

  StreamHandle defaultStream(c10::DeviceIndex device) override;
  StreamHandle createStream(c10::DeviceIndex device, int priority) override;
  void destroyStream(StreamHandle) noexcept override {} // streams are the delegate's pools'
  bool queryStream(StreamHandle stream) override;
  void synchronizeStream(StreamHandle stream) override;
  void streamWaitEvent(StreamHandle stream, EventHandle event) override;

  // csrc/runtime/guard.cpp passes torch.Event to the delegate's guard, so that their handles are the SDK's; these events
  // are for the runtime's own use.
  EventHandle createEvent(c10::DeviceIndex device, bool timing) override;
  void destroyEvent(EventHandle event) noexcept override;
  void recordEvent(EventHandle event, StreamHandle stream) override;
  bool queryEvent(EventHandle event) override;
  void synchronizeEvent(EventHandle event) override;
  double elapsedTime(EventHandle start, EventHandle end) override;

  // At once, on the calling thread, with the stream made current.
  void launch(StreamHandle stream, std::unique_ptr<Task> task) override;
  void launchKernel(StreamHandle, const char* name, KernelFunction, uint32_t, const void*, size_t) override;

  // Graphs are the delegate's own (csrc/runtime/delegate.cpp).
  void beginCapture(StreamHandle stream) override;
  GraphHandle endCapture(StreamHandle stream) override;
  CaptureInfo captureInfo(StreamHandle stream) override;
  size_t graphNodeCount(GraphHandle graph) override;
  GraphExecHandle instantiateGraph(GraphHandle graph) override;
  void launchGraph(GraphExecHandle graph, StreamHandle stream) override;
  void destroyGraph(GraphHandle) noexcept override {}
  void destroyGraphExec(GraphExecHandle) noexcept override {}
  void dumpGraph(GraphHandle graph, const std::string& path) override;

 protected:
  // Whether it lies in memory of allocate() or allocateHost().
  bool ownsPointer(const void* pointer);

 private:
  struct Block {
    c10::DataPtr data;
    size_t bytes;
  };

  std::mutex mutex_;
  // Never removed, so that a handle stays valid until the process ends.
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::unique_ptr<c10::Stream>> streams_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, int> priorities_;
  std::map<const void*, Block> blocks_; // device memory and pinned memory of allocate() and allocateHost()
};

// Makes a stream and its device current in the calling thread.
class DelegateStreamScope {
 public:
  DelegateStreamScope(const c10::impl::DeviceGuardImplInterface& guard, c10::Stream stream);
  ~DelegateStreamScope();
  DelegateStreamScope(const DelegateStreamScope&) = delete;
  DelegateStreamScope& operator=(const DelegateStreamScope&) = delete;

 private:
  const c10::impl::DeviceGuardImplInterface& guard_;
  c10::Device previousDevice_;
  c10::Stream previousStream_;
};

} // namespace simdev
