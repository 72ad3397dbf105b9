// PyTorch's hooks for an accelerator: what ATen and autograd ask of a device without knowing which one it is.
//
// Lives here: their registration, and the resizing of storages.  Does not live here: streams and events
// (guard.cpp).
#include "driver/driver.h"
#include "runtime/delegate.h"
#include "runtime/device.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace simdev {

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override { lazyInit(); }

  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return simdev::deviceCount() > 0; }

  bool hasPrimaryContext(c10::DeviceIndex device) const override { return isDeviceUsed(device); }

  c10::DeviceIndex deviceCount() const override { return simdev::deviceCount(); }

  c10::DeviceIndex getCurrentDevice() const override { return currentDevice(); }

  void setCurrentDevice(c10::DeviceIndex device) const override { setDevice(device); }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return simdev::exchangeDevice(device);
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return simdev::maybeExchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return simdev::getDefaultGenerator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<GeneratorImpl>(resolveDeviceIndex(device));
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    const auto info = driver().pointerInfo(data);
    TORCH_CHECK(
        info.has_value() && info->kind == PointerInfo::Kind::Device,
        "The specified pointer resides on host memory and is not registered with any simdev device.");
    return {kDeviceType, info->device};
  }

  // Pinning initialises the runtime, so before that no memory can be pinned.
  bool isPinnedPtr(const void* data) const override {
    if (!isInitialized()) {
      return false;
    }
    if (DelegateDriver* delegate = activeDelegate()) {
      return delegate->isPinned(data);
    }
    const auto info = driver().pointerInfo(data);
    return info.has_value() && info->kind == PointerInfo::Kind::PinnedHost;
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    lazyInit(); // a delegate brings its own
    return at::getHostAllocator(kDeviceType);
  }

  // In the order of the current stream, as every copy: the old block may still be written to by earlier work
  // there.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    c10::Allocator* allocator = impl->allocator();
    TORCH_CHECK(allocator != nullptr, "Trying to resize storage without an allocator");

    const c10::Device device = impl->device();
    const c10::DeviceGuard guard(device);
    c10::DataPtr block = bytes == 0 ? c10::DataPtr(nullptr, device) : allocator->allocate(bytes);
    const size_t kept = std::min(impl->nbytes(), bytes);
    if (kept > 0) {
      driver().memcpyAsync(
          block.mutable_get(),
          impl->data(),
          kept,
          MemcpyKind::DeviceToDevice,
          currentStreamHandle(device.index()));
      // The block may have been allocated on another stream, which must not reuse it before the copy is done.
      c10::getDeviceAllocator(kDeviceType)->recordStream(impl->data_ptr(), getCurrentStream(device.index()));
    }
    impl->set_data_ptr_noswap(std::move(block));
    impl->set_nbytes(bytes);
  }
};

[[maybe_unused]] const bool registered = [] {
  c10::register_privateuse1_backend("simdev"); // for programs without Python, which names it too
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

} // namespace

} // namespace simdev
