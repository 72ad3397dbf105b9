// Shells, and what PyTorch looks up by device type: the allocators of the delegate, under our type.
#include "runtime/delegate.h"

#include "runtime/stream.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

namespace simdev {

namespace {

void releaseStorage(void* storage) {
  InnerStorage::reclaim(static_cast<c10::StorageImpl*>(storage));
}

c10::DataPtr shellData(InnerStorage inner, c10::Device device) {
  void* const pointer = inner->mutable_data();
  return {pointer, new Shell(std::move(inner)), &releaseShell, device};
}

DelegateDriver& delegate() {
  return *driver().delegate();
}

// The delegate's device made current.
class DelegateDeviceScope {
 public:
  explicit DelegateDeviceScope(c10::DeviceIndex index)
      : guard_(delegate().guard()), previous_(guard_.exchangeDevice(delegate().guardDevice(index))) {}
  ~DelegateDeviceScope() { guard_.uncheckedSetDevice(previous_); }

 private:
  const c10::impl::DeviceGuardImplInterface& guard_;
  c10::Device previous_;
};

class DelegateAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex index = currentDevice();
    detail::deviceUsed[index].store(true, std::memory_order_relaxed);
    const DelegateDeviceScope scope(index);
    c10::DeviceAllocator& allocator = delegate().deviceAllocator();
    return shellData(
        c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(),
            bytes,
            allocator.allocate(bytes),
            &allocator,
            /*resizable=*/true),
        c10::Device(kDeviceType, index));
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return shellOf(data) != nullptr || data.get() == data.get_context();
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    delegate().deviceAllocator().copy_data(dest, src, count);
  }

  bool initialized() override { return isInitialized(); }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override { delegate().deviceAllocator().emptyCache(pool); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (const Shell* const shell = shellOf(data)) {
      delegate().deviceAllocator().recordStream(
          shell->inner()->data_ptr(), delegate().delegateStream(stream.device_index(), stream.id()));
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return delegate().deviceAllocator().getDeviceStats(resolveDeviceIndex(device));
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    delegate().deviceAllocator().resetAccumulatedStats(resolveDeviceIndex(device));
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    delegate().deviceAllocator().resetPeakStats(resolveDeviceIndex(device));
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return delegate().deviceAllocator().getMemoryInfo(resolveDeviceIndex(device));
  }
};

[[maybe_unused]] const bool registered = [] {
  onInitialization([] {
    if (driver().delegate() == nullptr) {
      return;
    }
    static auto* const allocator = new DelegateAllocator;
    c10::SetAllocator(kDeviceType, allocator);
    if (at::HostAllocator* const host = delegate().hostAllocator()) {
      at::setHostAllocator(kDeviceType, host);
    }
  });
  return true;
}();

} // namespace

void releaseShell(void* shell) {
  delete static_cast<Shell*>(shell);
}

InnerStorage adoptStorage(const c10::Storage& storage) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  void* const kept = c10::Storage(storage).unsafeReleaseStorageImpl();
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      impl->nbytes(),
      c10::DataPtr(impl->mutable_data(), kept, &releaseStorage, delegate().device(impl->device().index())),
      &delegate().deviceAllocator(),
      /*resizable=*/true);
}

c10::Storage makeShell(InnerStorage inner, c10::DeviceIndex index) {
  const size_t bytes = inner->nbytes();
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          bytes,
          shellData(std::move(inner), c10::Device(kDeviceType, index)),
          c10::GetAllocator(kDeviceType),
          /*resizable=*/true));
}

void updateShell(const c10::Storage& shell, const InnerStorage& inner) {
  c10::StorageImpl* const impl = shell.unsafeGetStorageImpl();
  if (inner->data() != impl->data()) {
    impl->set_data_ptr_noswap(shellData(inner, impl->device()));
  }
  if (inner->nbytes() != impl->nbytes()) {
    impl->set_nbytes(inner->nbytes());
  }
}

} // namespace simdev
