// Nested tensors of the strided layout.
//
// A nested simdev tensor is one dense simdev tensor, its buffer, with the sizes, strides and offsets of its components,
// which are on the host.  Nearly all of ATen's kernels for nested tensors are compositions of dense operators over the
// buffer or the components, so they serve this device as they are and wait for nothing.  Those that read the buffer's memory
// themselves are composed here.
#include "aten/nested.h"

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_nested_from_padded.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/softmax.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

#include <limits>

namespace simdev {

namespace {

using at::native::get_buffer;
using at::native::get_nested_sizes;
using at::native::get_nested_tensor_impl;
using at::native::wrap_buffer;

class NestedKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), stack);
  }
};

// --- Layer normalisation, sums and products -----------------------------------------------------------------------------------

// The buffer as a dense tensor of [rows, *shape], where `shape` are the sizes of the last dimensions.
at::Tensor rowsOf(const at::Tensor& nested, c10::IntArrayRef shape) {
  const auto* impl = get_nested_tensor_impl(nested);
  const auto rank = static_cast<int64_t>(shape.size());
  int64_t rowSize = 1;
  for (int64_t i = 0; i < rank; ++i) {
    TORCH_CHECK(
        impl->opt_size(nested.dim() - rank + i) == shape[i],
        "normalized_shape must be the sizes of the nested tensor's last dimensions, and those be regular, "
        "but got ",
        shape);
    rowSize *= shape[i];
  }
  c10::DimVector rows{rowSize == 0 ? 0 : nested.numel() / rowSize};
  rows.append(shape.begin(), shape.end());
  return get_buffer(nested).reshape(rows);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNorm(
    const at::Tensor& input,
    c10::IntArrayRef normalizedShape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps) {
  TORCH_CHECK_VALUE(
      weight.has_value() && bias.has_value(), "NestedTensor layer_norm requires weight and bias");
  const auto [output, mean, rstd] =
      at::native_layer_norm(rowsOf(input, normalizedShape), normalizedShape, weight, bias, eps);
  return {wrap_buffer(output.reshape({-1}), get_nested_sizes(input)), mean.reshape({-1}), rstd.reshape({-1})};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNormBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& input,
    c10::IntArrayRef normalizedShape,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    std::array<bool, 3> outputMask) {
  c10::DimVector statistics(normalizedShape.size() + 1, 1);
  statistics[0] = mean.numel();
  auto [gradInput, gradWeight, gradBias] = at::native_layer_norm_backward(
      rowsOf(gradOutput, normalizedShape),
      rowsOf(input, normalizedShape),
      normalizedShape,
      mean.view(statistics),
      rstd.view(statistics),
      weight,
      bias,
      outputMask);
  if (gradInput.defined()) {
    gradInput = wrap_buffer(gradInput.reshape({-1}), get_nested_sizes(input));
  }
  return {gradInput, gradWeight, gradBias};
}

at::Tensor sumOverLastDimension(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keepdim,
    std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(
      dims.has_value() && dims->size() == 1 && c10::maybe_wrap_dim((*dims)[0], self.dim()) == self.dim() - 1,
      "NestedTensor can only be reduced across the last dimension");
  TORCH_CHECK(keepdim, "NestedTensor requires keepdim=True for a reduction");
  TORCH_CHECK(!dtype.has_value(), "NestedTensor does not support the dtype argument of a reduction");
  TORCH_CHECK(self.is_contiguous(), "NestedTensor does not support reductions of noncontiguous tensors");
  if (get_nested_sizes(self).numel() == 0) {
    return self;
  }
  std::vector<at::Tensor> sums;
  for (const at::Tensor& component : self.unbind()) {
    sums.push_back(component.sum(-1, /*keepdim=*/false, self.scalar_type()).reshape({-1}));
  }
  at::Tensor sizes = get_nested_sizes(self).clone();
  sizes.select(1, -1).fill_(1);
  return wrap_buffer(at::cat(sums), sizes);
}

at::Tensor sumBackward(
    const at::Tensor& grad,
    const at::Tensor& self,
    at::OptionalIntArrayRef /*dim*/,
    bool /*keepdim*/) {
  at::Tensor result = wrap_buffer(at::empty_like(get_buffer(self)), get_nested_sizes(self));
  const std::vector<at::Tensor> components = result.unbind();
  const std::vector<at::Tensor> grads = grad.unbind();
  for (size_t i = 0; i < components.size(); ++i) {
    components[i].copy_(grads[i]);
  }
  return result;
}

// ATen's takes the components out of a padded product by masked_select(), for which the host would wait.
at::Tensor matmul(const at::Tensor& self, const at::Tensor& other) {
  const auto kind = [](const at::Tensor& tensor) { return tensor.is_nested() ? "nested" : "non-nested"; };
  TORCH_CHECK(
      self.is_nested() && other.is_nested(),
      "Expected both to be nested, but got a ",
      kind(self),
      " self and ",
      kind(other),
      " other");
  TORCH_CHECK(self.dim() >= 3 && other.dim() >= 3, "matmul: components of nested tensors must be matrices");
  const int64_t batchDims = self.dim() - 3;
  TORCH_CHECK(
      self.dim() == other.dim() && self.size(0) == other.size(0) &&
          get_nested_sizes(self)
              .narrow(1, 0, batchDims)
              .equal(get_nested_sizes(other).narrow(1, 0, batchDims)),
      "matmul does not broadcast nested tensors: their batch dimensions must be equal");
  const std::vector<at::Tensor> others = other.unbind();
  std::vector<at::Tensor> products;
  for (const at::Tensor& component : self.unbind()) {
    products.push_back(at::matmul(component, others[products.size()]).reshape({-1}));
  }
  at::Tensor sizes = get_nested_sizes(self).clone();
  sizes.select(1, -1).copy_(get_nested_sizes(other).select(1, -1));
  return wrap_buffer(at::cat(products), sizes);
}

// --- Padding and attention ------------------------------------------------------------------------------------------

// `padded` without what lies beyond `sizes`; with `transform0213` it is of [batch, heads, length, head size].
at::Tensor fromPadded(const at::Tensor& padded, const at::Tensor& sizes, bool transform0213) {
  const at::Tensor batch = transform0213 ? padded.permute({0, 2, 1, 3}).flatten(2) : padded;
  TORCH_CHECK(
      sizes.dim() == 2 && batch.dim() == sizes.size(1) + 1,
      "Expected sizes of ",
      batch.dim() - 1,
      " dimensions for each component, but got ",
      sizes.sizes());
  std::vector<at::Tensor> components;
  for (int64_t i = 0; i < sizes.size(0); ++i) {
    at::Tensor component = batch.select(0, i);
    for (int64_t dim = 0; dim < sizes.size(1); ++dim) {
      component = component.narrow(dim, 0, sizes.const_data_ptr<int64_t>()[i * sizes.size(1) + dim]);
    }
    components.push_back(component.reshape({-1}));
  }
  return wrap_buffer(at::cat(components), sizes);
}

// How long the components are depends on data: the host reads the mask, as it does for CUDA.
at::Tensor fromMask(const at::Tensor& padded, const at::Tensor& mask, bool checkMask) {
  return at::native::NestedTensor_nested_tensor_from_mask(padded, mask.cpu(), checkMask);
}

bool isMaskLeftAligned(const at::Tensor& padded, const at::Tensor& mask) {
  return at::native::NestedTensor_nested_tensor_from_mask_left_aligned(padded, mask.cpu());
}

// True for the padding in a batch of nested's components, [batch, length].
at::Tensor paddingOf(const at::Tensor& nested, int64_t length) {
  const at::Tensor lengths =
      get_nested_sizes(nested).select(1, 0).contiguous().to(nested.device(), /*non_blocking=*/true);
  return at::arange(length, lengths.options()).ge(lengths.unsqueeze(1));
}

// The three parts of `padded`, [batch, length, 3 * heads * head size], each as [batch, heads, length, head size].
std::tuple<at::Tensor, at::Tensor, at::Tensor>
splitHeads(const at::Tensor& padded, const at::Tensor& padding, const at::Tensor& bias, int64_t heads) {
  const auto [query, key, value] = at::_transform_bias_rescale_qkv(padded, bias, heads);
  return {query.masked_fill(padding, 0), key.masked_fill(padding, 0), value.masked_fill(padding, 0)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor>
transformBiasRescaleQkv(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads) {
  const at::Tensor padded = qkv.to_padded_tensor(0);
  return splitHeads(padded, paddingOf(qkv, padded.size(1)).unsqueeze(1).unsqueeze(-1), bias, heads);
}

std::tuple<at::Tensor, at::Tensor> multiHeadAttention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    int64_t /*embedDim*/,
    int64_t heads,
    const at::Tensor& qkvWeight,
    const at::Tensor& qkvBias,
    const at::Tensor& projWeight,
    const at::Tensor& projBias,
    const std::optional<at::Tensor>& mask,
    bool needWeights,
    bool averageWeights,
    std::optional<int64_t> /*maskType*/) {
  TORCH_CHECK(!mask.has_value(), "NestedTensor with mask is not supported yet");
  at::Tensor padded;
  if (query.is_same(key) && key.is_same(value)) {
    padded = at::linear(query, qkvWeight).to_padded_tensor(0);
  } else {
    const std::vector<at::Tensor> weights = qkvWeight.chunk(3);
    padded = at::cat(
        {at::linear(query, weights[0]).to_padded_tensor(0),
         at::linear(key, weights[1]).to_padded_tensor(0),
         at::linear(value, weights[2]).to_padded_tensor(0)},
        -1);
  }
  const at::Tensor padding = paddingOf(query, padded.size(1)).unsqueeze(1); // [batch, 1, length]
  const auto [q, k, v] = splitHeads(padded, padding.unsqueeze(-1), qkvBias, heads);
  at::Tensor weights =
      at::matmul(q, k.transpose(-1, -2)); // [batch, heads, length, length]; q is scaled already
  weights = weights.masked_fill_(padding.unsqueeze(-2), -std::numeric_limits<double>::infinity()).softmax(-1);
  const at::Tensor attended =
      at::_nested_from_padded(at::matmul(weights, v), get_nested_sizes(query), /*fuse_transform_0213=*/true);
  const at::Tensor output = at::linear(attended, projWeight, projBias);
  if (!needWeights) {
    return {output, at::Tensor()};
  }
  weights = weights.masked_fill_(padding.unsqueeze(-1), 0);
  return {output, averageWeights ? weights.mean(1) : weights};
}

} // namespace

void registerNestedKernel(torch::Library& library, const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (op.hasKernelForDispatchKey(DispatchKey::NestedTensorCPU) &&
      !op.hasKernelForDispatchKey(DispatchKey::NestedTensorPrivateUse1)) {
    library.impl(
        c10::toString(op.operator_name()).c_str(),
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<NestedKernel>()));
  }
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("native_layer_norm", TORCH_FN(layerNorm));
  m.impl("native_layer_norm_backward", TORCH_FN(layerNormBackward));
  m.impl("sum.dim_IntList", TORCH_FN(sumOverLastDimension));
  m.impl("_nested_sum_backward", TORCH_FN(sumBackward));
  m.impl("matmul", TORCH_FN(matmul));
  m.impl("_transform_bias_rescale_qkv", TORCH_FN(transformBiasRescaleQkv));
  m.impl("_native_multi_head_attention", TORCH_FN(multiHeadAttention));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_from_padded", TORCH_FN(fromPadded));
  m.impl("_nested_tensor_from_mask", TORCH_FN(fromMask));
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(isMaskLeftAligned));
  m.impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));
}

} // namespace simdev
