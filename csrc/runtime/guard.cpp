// c10's device guard: how PyTorch's device-independent code reaches devices, streams and events.
//
// Lives here: checks of the device type, and the translation to the runtime layer.  Everything that it does
// is done there (device.h, stream.h) or by the driver.
#include "compat.h"
#include "driver/driver.h"
#include "runtime/delegate.h"
#include "runtime/device.h"
#include "runtime/stream.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

namespace simdev {

namespace {

void checkType(c10::Device device) {
  TORCH_CHECK(device.type() == kDeviceType, "Expected a ", kDeviceType, " device, but got ", device);
}

// The types that every copy and conversion supports: no quantized, sub-byte or opaque ones.
constexpr int kSupportedTypes[] = {
    c10::kIndex_Byte,
    c10::kIndex_Char,
    c10::kIndex_Short,
    c10::kIndex_Int,
    c10::kIndex_Long,
    c10::kIndex_Half,
    c10::kIndex_Float,
    c10::kIndex_Double,
    c10::kIndex_ComplexHalf,
    c10::kIndex_ComplexFloat,
    c10::kIndex_ComplexDouble,
    c10::kIndex_Bool,
    c10::kIndex_BFloat16,
    c10::kIndex_Float8_e5m2,
    c10::kIndex_Float8_e4m3fn,
    c10::kIndex_Float8_e5m2fnuz,
    c10::kIndex_Float8_e4m3fnuz,
    c10::kIndex_Float8_e8m0fnu,
    c10::kIndex_UInt16,
    c10::kIndex_UInt32,
    c10::kIndex_UInt64,
};

struct DeviceGuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }

  // --- Devices -------------------------------------------------------------------------------------------

  c10::Device exchangeDevice(c10::Device device) const override {
    checkType(device);
    return {kDeviceType, simdev::exchangeDevice(device.index())};
  }

  c10::Device getDevice() const override { return {kDeviceType, currentDevice()}; }

  void setDevice(c10::Device device) const override {
    checkType(device);
    simdev::setDevice(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    simdev::uncheckedSetDevice(device.index());
  }

  c10::DeviceIndex deviceCount() const noexcept override { return simdev::deviceCount(); }

  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    checkType(device);
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const int type : kSupportedTypes) {
      capability.capability_data.capability_bits |= uint64_t{1} << type;
    }
    return capability;
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const c10::DeviceIndex index = resolveDeviceIndex(device);
    lazyInit();
    driver().synchronizeDevice(index);
  }

  // --- Streams -------------------------------------------------------------------------------------------

  c10::Stream getStream(c10::Device device) const override {
    checkType(device);
    return getCurrentStream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    checkType(device);
    return simdev::getDefaultStream(device.index());
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool isHighPriority) const override {
    checkType(device);
    return getStreamFromPool(isHighPriority ? streamPriorityRange().second : 0, device.index());
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    checkType(device);
    return getStreamFromPool(priority, device.index());
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchangeCurrentStream(Stream(stream));
  }

  bool queryStream(const c10::Stream& stream) const override { return Stream(stream).query(); }

  void synchronizeStream(const c10::Stream& stream) const override { Stream(stream).synchronize(); }

  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return Stream(stream).nativeHandle();
  }

#if SIMDEV_HAS_STREAM_IS_CAPTURING
  bool isStreamCapturing(const c10::Stream& stream) const override { return Stream(stream).isCapturing(); }
#endif

  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    c10::getDeviceAllocator(kDeviceType)->recordStream(pointer, stream);
  }

  // --- Events --------------------------------------------------------------------------------------------

  // Under a delegate events are its own.
  static const c10::impl::DeviceGuardImplInterface* delegateGuard() noexcept {
    DelegateDriver* delegate = activeDelegate();
    return delegate == nullptr ? nullptr : &delegate->guard();
  }
  static c10::Stream delegateStream(const c10::Stream& stream) {
    return activeDelegate()->delegateStream(stream.device_index(), stream.id());
  }

  // An event belongs to the device of the stream that first recorded it.
  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex device,
      const c10::EventFlag flag) const override {
    TORCH_CHECK(
        device == -1 || device == stream.device_index(),
        "Event device index ",
        static_cast<int>(device),
        " does not match recording stream's device index ",
        static_cast<int>(stream.device_index()),
        ".");
    TORCH_CHECK(flag != c10::EventFlag::INVALID, "simdev event received unknown flag");
    const StreamHandle handle = Stream(stream).handle();
    if (const auto* delegate = delegateGuard()) {
      delegate->record(event, delegateStream(stream), device, flag);
      return;
    }
    if (*event == nullptr) {
      *event = driver().createEvent(stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT);
    }
    driver().recordEvent(*event, handle);
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) {
      return;
    }
    if (const auto* delegate = delegateGuard()) {
      delegate->block(event, delegateStream(stream));
    } else {
      driver().streamWaitEvent(Stream(stream).handle(), event);
    }
  }

  bool queryEvent(void* event) const override {
    const auto* delegate = delegateGuard();
    return event == nullptr ||
           (delegate != nullptr ? delegate->queryEvent(event) : driver().queryEvent(event));
  }

  void synchronizeEvent(void* event) const override {
    if (event == nullptr) {
      return;
    }
    if (const auto* delegate = delegateGuard()) {
      delegate->synchronizeEvent(event);
    } else {
      driver().synchronizeEvent(event);
    }
  }

  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event == nullptr) {
      return;
    }
    if (const auto* delegate = delegateGuard()) {
      delegate->destroyEvent(event, device);
    } else {
      driver().destroyEvent(event);
    }
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex device) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    if (const auto* delegate = delegateGuard()) {
      return delegate->elapsedTime(start, end, device);
    }
    return driver().elapsedTime(start, end);
  }
};

} // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuardImpl);

} // namespace simdev
