// The C interface that generated C++ calls (aoti/simdev_aoti.h), except for operators (aoti_operators.cpp).
#include "compile/aoti_shim.h"

#include "compile/compiled_kernel.h"
#include "runtime/caching_allocator.h"
#include "runtime/device.h"
#include "runtime/stream.h"

#include <c10/core/DeviceGuard.h>

#include <optional>
#include <string>
#include <utility>

namespace simdev::aoti {

thread_local std::string lastError;

namespace {

// The current stream where `handle` is null.
StreamHandle streamOr(StreamHandle handle) {
  return handle != nullptr ? handle : currentStreamHandle(currentDevice());
}

struct ScopedStream {
  ScopedStream(StreamHandle handle, c10::DeviceIndex device) : device(c10::Device(kDeviceType, device)) {
    // The stream that is current already keeps its id, by which the allocator knows it.
    if (handle != nullptr && handle != currentStreamHandle(device)) {
      stream.emplace(getStreamFromExternal(handle, device));
    }
  }
  c10::DeviceGuard device;
  std::optional<StreamGuard> stream;
};

template <typename Opaque, typename Type>
Opaque* opaque(Type* object) noexcept {
  return reinterpret_cast<Opaque*>(object);
}
EventHandle event(AOTISimdevEventHandle handle) noexcept {
  return reinterpret_cast<EventHandle>(handle);
}

} // namespace

} // namespace simdev::aoti

using namespace simdev; // NOLINT: definitions of C functions, which have no namespace
using namespace simdev::aoti; // NOLINT

const char* aoti_torch_simdev_error_string() {
  return lastError.c_str();
}

AOTITorchError aoti_torch_simdev_create_kernel(
    void* entry,
    const char* name,
    const char* signature,
    AOTISimdevKernelHandle* ret_kernel) {
  return guarded([&] {
    const auto function = reinterpret_cast<KernelFunction>(entry);
    *ret_kernel = opaque<AOTISimdevKernelOpaque>(new CompiledKernel(function, name, signature));
  });
}

AOTITorchError aoti_torch_simdev_delete_kernel(AOTISimdevKernelHandle kernel) {
  return guarded([&] { delete reinterpret_cast<CompiledKernel*>(kernel); });
}

AOTITorchError
aoti_torch_simdev_launch_kernel(AOTISimdevKernelHandle handle, const uint64_t* arguments, size_t count) {
  return guarded([&] {
    const auto& kernel = *reinterpret_cast<CompiledKernel*>(handle);
    TORCH_CHECK_TYPE(
        count == kernel.size(), kernel.name(), " takes ", kernel.size(), " arguments, got ", count);
    CompiledKernel::Arguments packed(kernel);
    for (size_t i = 0; i < count; ++i) {
      const ArgumentKind kind = kernel.kind(i);
      if (kind == ArgumentKind::Tensor || kind == ArgumentKind::HostScalar) {
        packed.add(tensor(reinterpret_cast<AtenTensorHandle>(arguments[i])));
      } else {
        packed.add(arguments[i]);
      }
    }
    kernel.launch(packed);
  });
}

AOTITorchError aoti_torch_simdev_create_stream_guard(
    void* stream,
    int32_t device_index,
    AOTISimdevStreamGuardHandle* ret_guard) {
  return guarded([&] {
    *ret_guard =
        opaque<AOTISimdevStreamGuardOpaque>(new ScopedStream(stream, resolveDeviceIndex(device_index)));
  });
}

AOTITorchError aoti_torch_simdev_delete_stream_guard(AOTISimdevStreamGuardHandle guard) {
  return guarded([&] { delete reinterpret_cast<ScopedStream*>(guard); });
}

AOTITorchError aoti_torch_simdev_get_device(int32_t* ret_device_index) {
  return guarded([&] { *ret_device_index = currentDevice(); });
}

AOTITorchError aoti_torch_simdev_set_device(int32_t device_index) {
  return guarded([&] { setDevice(resolveDeviceIndex(device_index)); });
}

AOTITorchError aoti_torch_simdev_malloc(uint64_t bytes, void** ret_pointer) {
  return guarded([&] {
    *ret_pointer = allocator().rawAllocate(bytes, currentDevice(), currentStreamHandle(currentDevice()));
  });
}

AOTITorchError aoti_torch_simdev_free(void* pointer) {
  return guarded([&] { allocator().rawDelete(pointer); });
}

AOTITorchError aoti_torch_simdev_memcpy(void* dst, const void* src, uint64_t bytes) {
  return guarded([&] {
    const auto target = driver().pointerInfo(dst);
    TORCH_CHECK(target && target->kind == PointerInfo::Kind::Device, dst, " is no memory of a simdev device");
    const auto source = driver().pointerInfo(src);
    const bool fromDevice = source && source->kind == PointerInfo::Kind::Device;
    void* const stream = currentStreamHandle(target->device);
    driver().memcpyAsync(
        dst, src, bytes, fromDevice ? MemcpyKind::DeviceToDevice : MemcpyKind::HostToDevice, stream);
    driver().synchronizeStream(stream);
  });
}

AOTITorchError aoti_torch_simdev_create_event(AOTISimdevEventHandle* ret_event) {
  return guarded([&] {
    lazyInit();
    const EventHandle created = driver().createEvent(currentDevice(), /*timing=*/false);
    *ret_event = reinterpret_cast<AOTISimdevEventHandle>(created);
  });
}

AOTITorchError aoti_torch_simdev_delete_event(AOTISimdevEventHandle handle) {
  return guarded([&] { driver().destroyEvent(event(handle)); });
}

AOTITorchError aoti_torch_simdev_record_event(AOTISimdevEventHandle handle, void* stream) {
  return guarded([&] { driver().recordEvent(event(handle), streamOr(stream)); });
}

AOTITorchError aoti_torch_simdev_query_event(AOTISimdevEventHandle handle, bool* ret_done) {
  return guarded([&] { *ret_done = driver().queryEvent(event(handle)); });
}

AOTITorchError aoti_torch_simdev_synchronize_event(AOTISimdevEventHandle handle) {
  return guarded([&] { driver().synchronizeEvent(event(handle)); });
}
