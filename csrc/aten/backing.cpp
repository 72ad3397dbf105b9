// How a backing tensor is made.  See backing.h.
#include "aten/backing.h"

#include "aten/inline.h"
#include "aten/sparse.h"
#include "driver/driver.h"

#include <ATen/ops/clone.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

namespace simdev {

c10::DispatchKey kernelDispatchKey() {
  static const c10::DispatchKey key =
      driver().kernelDeviceType() == c10::DeviceType::CPU ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  return key;
}

c10::Storage BackingStorages::find(const c10::Storage& storage, c10::DeviceIndex device) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  for (const auto& [known, backing] : made_) {
    if (known == impl) {
      return backing;
    }
  }
  const c10::DeviceType type = driver().kernelDeviceType();
  void* base = impl->mutable_data();
  void* pointer = base == nullptr ? nullptr : driver().kernelPointer(device, base);
  const c10::Device kernelDevice(type, type == c10::DeviceType::CPU ? c10::DeviceIndex(-1) : device);
  return made_
      .emplace_back(
          impl,
          c10::make_intrusive<c10::StorageImpl>(
              c10::StorageImpl::use_byte_size_t(),
              storage.nbytes(),
              c10::DataPtr(pointer, kernelDevice),
              /*allocator=*/nullptr,
              /*resizable=*/false))
      .second;
}

at::Tensor backing(const at::Tensor& tensor) {
  BackingStorages storages;
  return backing(tensor, storages);
}

at::Tensor backing(const at::Tensor& tensor, BackingStorages& storages) {
  if (!tensor.defined()) {
    return {};
  }
  if (!tensor.is_privateuseone()) {
    // The host may overwrite its tensor as soon as we return; a wrapped Python number is nobody else's.
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return tensor;
    }
    KernelDispatchGuard guard;
    return at::clone(tensor);
  }
  if (isSparse(tensor)) {
    return sparseBacking(tensor);
  }
  if (DelegateDriver* delegate = activeDelegate()) {
    return delegateTensor(tensor, *delegate);
  }
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  auto backingImpl = c10::make_intrusive<c10::TensorImpl>(
      storages.find(impl->unsafe_storage(), impl->device().index()),
      c10::DispatchKeySet(kernelDispatchKey()),
      impl->dtype());
  backingImpl->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  if (impl->is_conj()) {
    backingImpl->_set_conj(true);
  }
  if (impl->is_neg()) {
    backingImpl->_set_neg(true);
  }
  if (impl->is_wrapped_number()) {
    backingImpl->set_wrapped_number(true);
  }
  return at::Tensor(std::move(backingImpl));
}

std::optional<at::Tensor> backing(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? std::optional<at::Tensor>(backing(*tensor)) : std::nullopt;
}

std::vector<at::Tensor> backing(at::TensorList tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(backing(tensor));
  }
  return result;
}

KernelDispatchGuard::KernelDispatchGuard()
    : guard_(
          c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
          c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set |
              c10::autocast_dispatch_keyset) {}

} // namespace simdev
