// Lets `parameter.data = tensor` change a parameter's device between the host and simdev in place, as CUDA
// does.
//
// Module.to() then keeps every parameter's identity: tied weights stay tied, optimizers built before the move
// keep working, and hooks and weak references survive.  PyTorch asks the operator below, a documented
// override point, whether two tensors may exchange their contents; its own answer knows a fixed list of dense
// backends, without PrivateUse1.
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

namespace simdev {

namespace {

// Both are plain TensorImpls over a strided storage.  Others (meta, vulkan, mkldnn) keep PyTorch's answer.
bool isDense(c10::DispatchKeySet keys) {
  constexpr auto kBackends = c10::DispatchKeySet(
      {c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit, c10::BackendComponent::PrivateUse1Bit});
  return keys.has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) && keys.has_any(kBackends);
}

bool hasCompatibleShallowCopyType(const at::Tensor& self, const at::Tensor& from) {
  return (isDense(self.key_set()) && isDense(from.key_set())) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &hasCompatibleShallowCopyType);
}

} // namespace simdev
