// Operators that are compositions here: ATen's own refuses devices it does not know, resizes where only the host can, gives
// other strides than the CPU's, does work twice, or trusts numbers that it gets in a tensor.
#include "aten/launched.h"

#include <ATen/TensorIterator.h>
#include <ATen/core/IListRef.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_pad_packed_sequence_native.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logical_xor.h>
#include <ATen/ops/mode.h>
#include <ATen/ops/polar.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>

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

using IndexList = c10::List<std::optional<at::Tensor>>;

// The indices with those of a mask's elements in its place.
IndexList withoutMasks(const at::Tensor& self, const IndexList& indices) {
  const auto isMask = [](const std::optional<at::Tensor>& index) {
    return index.has_value() && index->defined() &&
           (index->scalar_type() == c10::kBool || index->scalar_type() == c10::kByte);
  };
  if (std::none_of(indices.begin(), indices.end(), isMask)) {
    return indices;
  }
  TORCH_CHECK_INDEX(
      indices.size() <= static_cast<size_t>(self.dim()),
      "too many indices for tensor of dimension ",
      self.dim(),
      " (got ",
      indices.size(),
      ")");
  IndexList places;
  for (const at::Tensor& place : at::native::expandTensors(self, indices)) {
    places.push_back(place.defined() ? std::optional(place) : std::nullopt);
  }
  return places;
}

// The shape function counts the elements of a mask and the kernel would count them again.
at::Tensor index(const at::Tensor& self, const IndexList& indices) {
  static const std::string caller = "aten::index";
  const IndexList places = withoutMasks(self, indices);
  StructuredCallGuard guard(caller);
  return at::_ops::index_Tensor::redispatch(kCompositeKeys, self, places);
}

// ATen's writes a length for each time that the batch shrinks into memory for as many as the first batch has.
std::tuple<at::Tensor, at::Tensor> padPackedSequence(
    const at::Tensor& data,
    const at::Tensor& batchSizes,
    bool batchFirst,
    const at::Scalar& paddingValue,
    int64_t totalLength) {
  if (batchSizes.is_cpu() && batchSizes.dim() == 1 && batchSizes.scalar_type() == c10::kLong) {
    const auto sizes = batchSizes.accessor<int64_t, 1>();
    for (int64_t step = 0; step < sizes.size(0); ++step) {
      TORCH_CHECK(
          sizes[step] >= 0 && (step == 0 || sizes[step] <= sizes[step - 1]),
          "batch_sizes must be non-negative and must not increase, but got ",
          sizes[step],
          " at step ",
          step);
    }
  }
  return at::native::_pad_packed_sequence(data, batchSizes, batchFirst, paddingValue, totalLength);
}

} // namespace

// Autograd differentiates through it.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_pad_packed_sequence", TORCH_FN(padPackedSequence));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_pad_packed_sequence", TORCH_FN(padPackedSequence));
  m.impl("index.Tensor", TORCH_FN(index));
  m.impl("mode.values", TORCH_FN(modeOut));
  m.impl("addbmm_", TORCH_FN(addbmmInPlace));
  m.impl("logical_and", TORCH_FN(logical<at::logical_and_out>));
  m.impl("logical_or", TORCH_FN(logical<at::logical_or_out>));
  m.impl("logical_xor", TORCH_FN(logical<at::logical_xor_out>));
  m.impl("complex", TORCH_FN(complexOf<at::complex_out>));
  m.impl("polar", TORCH_FN(complexOf<at::polar_out>));
}

} // namespace simdev
