// Backing tensors: a simdev tensor's bytes as the code that runs on the device sees them.
//
// Under the simulator a backing tensor is a CPU tensor over the backing mapping, under a GPU driver a tensor of
// that GPU's device type over the same pointer.  Only launched work may touch its elements; the host may make one.
// A backing tensor does not own memory: stream order keeps the memory alive until the work that uses it is done.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

namespace simdev {

// True for tensors of this device.
inline bool isSimdev(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

// The backing storages made so far for one operator call.  Tensors that share a storage must share its backing too: ATen
// refuses to write into memory that it reads by comparing storages.
class BackingStorages {
 public:
  c10::Storage find(const c10::Storage& storage, c10::DeviceIndex device);

 private:
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 4> made_;
};

// The backing tensor of a simdev tensor: same sizes, strides, offset, dtype, conjugate and negative bits.
// An undefined tensor stays undefined.  A 0-dim host tensor is captured by value, as a kernel argument is.
at::Tensor backing(const at::Tensor& tensor, BackingStorages& storages);
at::Tensor backing(const at::Tensor& tensor);
std::optional<at::Tensor> backing(const std::optional<at::Tensor>& tensor);
std::vector<at::Tensor> backing(at::TensorList tensors);

// The dispatch key whose ATen kernels run on the device.
c10::DispatchKey kernelDispatchKey();

// The dispatcher state in which ATen's kernels run on the device: no autograd, no autocast, no Python modes, whatever the
// thread that launched them (or, under a GPU driver, runs them) had on.
class KernelDispatchGuard {
 public:
  KernelDispatchGuard();

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

} // namespace simdev
