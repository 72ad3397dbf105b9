// Operators whose composition in ATen refuses devices that it does not know by name.
#include <ATen/native/Resize.h>
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

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mode.values", TORCH_FN(modeOut));
}

} // namespace simdev
