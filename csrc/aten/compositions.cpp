// Operators that are compositions here: ATen's own refuses devices it does not know, resizes where only the host can, or gives
// other strides than the CPU's.
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logical_xor.h>
#include <ATen/ops/mode.h>
#include <ATen/ops/polar.h>
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

// Their Meta kernels make every result contiguous; TensorIterator lets it follow the inputs, as the CPU's kernels do.
using BinaryOut = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&);

template <BinaryOut Out>
at::Tensor binary(const at::Tensor& self, const at::Tensor& other, c10::ScalarType dtype) {
  at::Tensor result = at::TensorIteratorConfig()
                          .check_all_same_dtype(false)
                          .allow_cpu_scalars(true)
                          .declare_static_dtype(dtype)
                          .add_owned_output(at::Tensor())
                          .add_owned_const_input(self)
                          .add_owned_const_input(other)
                          .build()
                          .output();
  return Out(result, self, other);
}

template <BinaryOut Out>
at::Tensor logical(const at::Tensor& self, const at::Tensor& other) {
  return binary<Out>(self, other, c10::kBool);
}

template <BinaryOut Out>
at::Tensor complexOf(const at::Tensor& self, const at::Tensor& other) {
  const c10::ScalarType type = self.scalar_type();
  return binary<Out>(self, other, c10::isFloatingType(type) ? c10::toComplexType(type) : type);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mode.values", TORCH_FN(modeOut));
  m.impl("addbmm_", TORCH_FN(addbmmInPlace));
  m.impl("logical_and", TORCH_FN(logical<at::logical_and_out>));
  m.impl("logical_or", TORCH_FN(logical<at::logical_or_out>));
  m.impl("logical_xor", TORCH_FN(logical<at::logical_xor_out>));
  m.impl("complex", TORCH_FN(complexOf<at::complex_out>));
  m.impl("polar", TORCH_FN(complexOf<at::polar_out>));
}

} // namespace simdev
