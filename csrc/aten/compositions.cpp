// Operators that are compositions here: ATen's own refuses devices it does not know, or resizes where only the host can.
#include <ATen/native/Resize.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/mode.h>
#include <torch/library.h>

namespace simdev {

namespace {

std::tuple<at::Tensor&, at::Tensor&>
modeOut(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& values, at::Tensor& indices) {
  const auto [newValues, newIndices] = at::mode(self, dim, keepdim);
  at::native::resize_output(values, newValues.sizes());
  at::native::resize_output(indices, newIndices.sizes());
  values.copy_(newValues);
  indices.copy_(newIndices);
  return {values, indices};
}

// In place, this one grows its input to the broadcast size, for which the host must have the result's.
at::Tensor& addbmmInPlace(
    at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const at::Tensor result = at::addbmm(self, batch1, batch2, beta, alpha);
  self.resize_(result.sizes());
  return self.copy_(result);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mode.values", TORCH_FN(modeOut));
}

} // namespace simdev
