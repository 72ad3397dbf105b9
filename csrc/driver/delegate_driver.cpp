// The driver over another c10 device.  See delegate_driver.h.
#include "csrc/driver/delegate_driver.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/AcceleratorHooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "csrc/compat.h"

namespace simdev {

namespace {

const c10::Stream& toStream(StreamHandle handle) {
  return *static_cast<const c10::Stream*>(handle);
}

// The delegate makes an event at its first record.
struct DelegateEvent {
  void* event = nullptr;
  c10::DeviceIndex device;
  c10::EventFlag flag;
};

DelegateEvent& toEvent(EventHandle handle) {
  return *static_cast<DelegateEvent*>(handle);
}

at::Tensor bytesAt(const void* pointer, size_t bytes, c10::Device device) {
  const int64_t size = static_cast<int64_t>(bytes);
  return at::for_blob(const_cast<void*>(pointer), size)
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

[[noreturn]] void unsupported(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "simdev: ", what, " is not the driver's here: use torch.simdev.Graph");
}

} // namespace

DelegateStreamScope::DelegateStreamScope(const c10::impl::DeviceGuardImplInterface& guard, c10::Stream stream)
    : guard_(guard),
      previousDevice_(guard.exchangeDevice(stream.device())),
      previousStream_(guard.exchangeStream(stream)) {}

DelegateStreamScope::~DelegateStreamScope() {
  guard_.exchangeStream(previousStream_);
  guard_.uncheckedSetDevice(previousDevice_);
}

// --- Streams ------------------------------------------------------------------------------------------------------

StreamHandle DelegateDriver::streamHandle(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  auto& entry = streams_[{stream.device_index(), stream.id()}];
  if (entry == nullptr) {
    entry = std::make_unique<c10::Stream>(delegateStream(stream.device_index(), stream.id()));
  }
  return entry.get();
}

c10::StreamId DelegateDriver::createStreamId(c10::DeviceIndex index, int priority) {
  const c10::StreamId id = guard().getNewStream(guardDevice(index), priority).id();
  const std::lock_guard lock(mutex_);
  priorities_[{index, id}] = priority;
  return id;
}

int DelegateDriver::streamPriority(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto known = priorities_.find({stream.device_index(), stream.id()});
  return known == priorities_.end() ? 0 : known->second;
}

StreamHandle DelegateDriver::defaultStream(c10::DeviceIndex device) {
  return streamHandle(guard().getDefaultStream(guardDevice(device)));
}

StreamHandle DelegateDriver::createStream(c10::DeviceIndex device, int priority) {
  return streamHandle(delegateStream(device, createStreamId(device, priority)));
}

bool DelegateDriver::queryStream(StreamHandle stream) {
  return guard().queryStream(toStream(stream));
}

void DelegateDriver::synchronizeStream(StreamHandle stream) {
  guard().synchronizeStream(toStream(stream));
}

void DelegateDriver::streamWaitEvent(StreamHandle stream, EventHandle event) {
  if (toEvent(event).event != nullptr) {
    guard().block(toEvent(event).event, toStream(stream));
  }
}

void DelegateDriver::synchronizeDevice(c10::DeviceIndex device) {
  guard().synchronizeDevice(device);
}

// --- Events -------------------------------------------------------------------------------------------------------

EventHandle DelegateDriver::createEvent(c10::DeviceIndex device, bool timing) {
  return new DelegateEvent{
      nullptr, device, timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT};
}

void DelegateDriver::destroyEvent(EventHandle event) noexcept {
  const std::unique_ptr<DelegateEvent> owned(&toEvent(event));
  if (owned->event != nullptr) {
    guard().destroyEvent(owned->event, owned->device);
  }
}

void DelegateDriver::recordEvent(EventHandle event, StreamHandle stream) {
  DelegateEvent& target = toEvent(event);
  guard().record(&target.event, toStream(stream), target.device, target.flag);
}

bool DelegateDriver::queryEvent(EventHandle event) {
  return toEvent(event).event == nullptr || guard().queryEvent(toEvent(event).event);
}

void DelegateDriver::synchronizeEvent(EventHandle event) {
  if (toEvent(event).event != nullptr) {
    guard().synchronizeEvent(toEvent(event).event);
  }
}

double DelegateDriver::elapsedTime(EventHandle start, EventHandle end) {
  return guard().elapsedTime(toEvent(start).event, toEvent(end).event, toEvent(start).device);
}

// --- Memory -------------------------------------------------------------------------------------------------------

void* DelegateDriver::allocate(c10::DeviceIndex index, size_t bytes) {
  const c10::Device device = guardDevice(index);
  const c10::Device previous = guard().exchangeDevice(device);
  c10::DataPtr data;
  try {
    data = deviceAllocator().allocate(bytes);
  } catch (const c10::OutOfMemoryError&) {
  }
  guard().uncheckedSetDevice(previous);
  void* const pointer = data.get();
  const std::lock_guard lock(mutex_);
  blocks_[pointer] = {std::move(data), bytes};
  return pointer;
}

void DelegateDriver::deallocate(c10::DeviceIndex device, void* pointer) noexcept {
  try {
    synchronizeDevice(device);
  } catch (...) { // whatever failed is over
  }
  deallocateHost(pointer);
}

MemoryInfo DelegateDriver::memoryInfo(c10::DeviceIndex device) {
  const auto [free, total] = deviceAllocator().getMemoryInfo(device);
  return {free, total};
}

void* DelegateDriver::allocateHost(size_t bytes) {
  at::HostAllocator* const allocator = hostAllocator();
  c10::DataPtr data =
      allocator != nullptr ? allocator->allocate(bytes) : c10::GetCPUAllocator()->allocate(bytes);
  void* const pointer = data.get();
  const std::lock_guard lock(mutex_);
  blocks_[pointer] = {std::move(data), bytes};
  return pointer;
}

bool DelegateDriver::ownsPointer(const void* pointer) {
  const std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(pointer);
  return after != blocks_.begin() &&
         pointer < static_cast<const char*>((--after)->first) + after->second.bytes;
}

void DelegateDriver::deallocateHost(void* pointer) noexcept {
  c10::DataPtr data; // freed after the lock
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(pointer);
  if (found != blocks_.end()) {
    data = std::move(found->second.data);
    blocks_.erase(found);
  }
}

bool DelegateDriver::isPinned(const void* pointer) {
  return at::globalContext().getAcceleratorHooksInterface(type()).isPinnedPtr(pointer);
}

std::optional<PointerInfo> DelegateDriver::pointerInfo(const void* pointer) noexcept {
  try {
    if (isPinned(pointer)) {
      return PointerInfo{PointerInfo::Kind::PinnedHost, -1, const_cast<void*>(pointer), 0};
    }
    const c10::Device device =
        at::globalContext().getAcceleratorHooksInterface(type()).getDeviceFromPtr(const_cast<void*>(pointer));
    return PointerInfo{PointerInfo::Kind::Device, device.index(), const_cast<void*>(pointer), 0};
  } catch (...) {
    return std::nullopt; // how the hooks say that it is none of theirs
  }
}

// --- Copies -------------------------------------------------------------------------------------------------------

void DelegateDriver::memcpyAsync(
    void* dst,
    const void* src,
    size_t bytes,
    MemcpyKind kind,
    StreamHandle stream) {
  if (bytes == 0) {
    return;
  }
  const DelegateStreamScope scope(guard(), toStream(stream));
  const c10::Device host(c10::kCPU);
  const c10::Device own = device(toStream(stream).device_index());
  // The other side of a copy between devices may lie on another one.
  const auto place = [&](const void* pointer, bool onHost) {
    if (onHost) {
      return host;
    }
    const auto info = kind == MemcpyKind::DeviceToDevice ? pointerInfo(pointer) : std::nullopt;
    return info.has_value() && info->device >= 0 ? device(info->device) : own;
  };
  at::Tensor target = bytesAt(dst, bytes, place(dst, kind == MemcpyKind::DeviceToHost));
  const at::Tensor source = bytesAt(src, bytes, place(src, kind == MemcpyKind::HostToDevice));
  const bool asynchronous =
      kind == MemcpyKind::DeviceToDevice || isPinned(kind == MemcpyKind::HostToDevice ? src : dst);
  target.copy_(source, /*non_blocking=*/asynchronous);
}

void DelegateDriver::memsetAsync(void* dst, int value, size_t bytes, StreamHandle stream) {
  const DelegateStreamScope scope(guard(), toStream(stream));
  bytesAt(dst, bytes, device(toStream(stream).device_index())).fill_(value & 0xFF);
}

// --- Launch -------------------------------------------------------------------------------------------------------

void DelegateDriver::launch(StreamHandle stream, std::unique_ptr<Task> task) {
  const DelegateStreamScope scope(guard(), toStream(stream));
  task->run();
}

void DelegateDriver::launchKernel(
    StreamHandle,
    const char* name,
    KernelFunction,
    uint32_t,
    const void*,
    size_t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "simdev: ", name, ": the driver '", this->name(), "' runs no native kernels of torch_simdev");
}

// --- Graphs -------------------------------------------------------------------------------------------------------

CaptureInfo DelegateDriver::captureInfo(StreamHandle stream) {
#if SIMDEV_HAS_STREAM_IS_CAPTURING
  return {guard().isStreamCapturing(toStream(stream)) ? CaptureStatus::Active : CaptureStatus::None};
#else
  return {};
#endif
}

void DelegateDriver::beginCapture(StreamHandle) {
  unsupported("capturing a graph");
}
GraphHandle DelegateDriver::endCapture(StreamHandle) {
  unsupported("capturing a graph");
}
GraphExecHandle DelegateDriver::instantiateGraph(GraphHandle) {
  unsupported("a graph");
}
void DelegateDriver::launchGraph(GraphExecHandle, StreamHandle) {
  unsupported("a graph");
}
size_t DelegateDriver::graphNodeCount(GraphHandle) {
  unsupported("a graph");
}
void DelegateDriver::dumpGraph(GraphHandle, const std::string&) {
  unsupported("a graph");
}

} // namespace simdev
