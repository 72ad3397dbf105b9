// Scaled dot product attention: which algorithm serves a call, and the fused one.
//
// The fused kernel is ATen's flash attention for the CPU, reached through the operators that PyTorch keeps for
// out-of-tree devices.  What it cannot do (dropout, a mask with a gradient, unequal head sizes) is composed of
// other operators by PyTorch itself.
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/inline.h"
#include "csrc/aten/launch_into.h"
#include "csrc/driver/driver.h"

#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace simdev {

namespace {

bool hasUnitLastStride(const at::Tensor& tensor) {
  return tensor.sym_stride(-1) == 1;
}

// Whether the fused kernel computes this call; `params.attn_mask` is as the user gave it.  Asked while a graph is traced
// too, and then no dynamic size may be looked at more closely than the question needs.
bool fusedKernelSupports(const sdp::sdp_params& params) {
  if (!sdp::has_only_dense_inputs(params)) {
    return false;
  }
  const auto& [query, key, value, mask, dropout, isCausal, enableGqa] = params;
  const auto dtypes = std::array{c10::kFloat, c10::kDouble, c10::kBFloat16, c10::kHalf};
  return dropout == 0.0 && sdp::check_tensor_dtype(params, dtypes, /*debug=*/false) &&
         sdp::check_tensor_shapes(params, false) &&
         sdp::check_batch_size_and_num_heads_dense</*supports_gqa=*/true>(params, false) &&
         sdp::check_attn_mask_shape(params, false) &&
         sdp::check_nonzero_sequence_lengths_dense(params, false) && query.sym_size(-1) == key.sym_size(-1) &&
         query.sym_size(-1) == value.sym_size(-1) && hasUnitLastStride(query) && hasUnitLastStride(key) &&
         hasUnitLastStride(value);
}

// Whether the two matrix products are enough to compute for more than one thread.
bool isLarge(const at::Tensor& query, const at::Tensor& key) {
  return 2 * query.numel() * key.size(2) >= kParallelMultiplications;
}

// torch.nn.attention.sdpa_kernel() switches backends off in the context.
int64_t chooseBackend(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool isCausal,
    std::optional<double> scale,
    bool enableGqa) {
  if (activeDelegate() != nullptr && !query.is_nested()) {
    return chooseInlineAttention(query, key, value, mask, dropout, isCausal, scale, enableGqa);
  }
  const at::Context& context = at::globalContext();
  at::SDPBackend backend = at::SDPBackend::error;
  if (fusedKernelSupports({query, key, value, mask, dropout, isCausal, enableGqa})) {
    if (context.userEnabledOverrideableSDP()) {
      backend = at::SDPBackend::overrideable;
    } else if (context.userEnabledFlashSDP()) {
      backend = at::SDPBackend::flash_attention;
    }
  }
  if (backend == at::SDPBackend::error && context.userEnabledMathSDP()) {
    backend = at::SDPBackend::math;
  }
  return static_cast<int64_t>(backend);
}

std::tuple<
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    c10::SymInt,
    c10::SymInt,
    at::Tensor,
    at::Tensor,
    at::Tensor>
fusedAttention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool isCausal,
    bool /*returnDebugMask*/,
    std::optional<double> scale) {
  // chooseBackend() has checked this for F.scaled_dot_product_attention; the operator may also be called by itself.
  const bool enableGqa = query.dim() >= 3 && key.dim() >= 3 && query.size(-3) != key.size(-3);
  TORCH_CHECK(
      fusedKernelSupports({query, key, value, mask, dropout, isCausal, enableGqa}),
      "_scaled_dot_product_fused_attention_overrideable: expected floating-point query, key and value of "
      "shape "
      "(batch, heads, length, head size) with one dtype and head size, a mask that broadcasts to "
      "(batch, heads, query length, key length) and requires no gradient, and no dropout");
  const c10::Device device = query.device();
  checkSameDevice(device, {key, value, mask});
  const c10::ScalarType accumulator =
      query.scalar_type() == c10::kDouble ? c10::ScalarType::Double : c10::ScalarType::Float;
  at::Tensor output = at::empty_like(query);
  at::Tensor logsumexp = empty({query.size(0), query.size(1), query.size(2)}, accumulator, device);
  launchInto(
      device,
      "aten::scaled_dot_product_attention",
      {output, logsumexp},
      [query = backing(query),
       key = backing(key),
       value = backing(value),
       mask = backing(mask),
       isCausal,
       scale] {
        auto [output, logsumexp] =
            at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, isCausal, mask, scale);
        return std::array{output, logsumexp};
      },
      isLarge(query, key));
  // Without dropout there is no random state to keep for the backward pass.
  at::Tensor seed = empty({}, c10::ScalarType::Long, device);
  at::Tensor offset = empty({}, c10::ScalarType::Long, device);
  return {output, logsumexp, {}, {}, query.size(2), key.size(2), seed, offset, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fusedAttentionBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& mask,
    std::array<bool, 4> gradInputMask,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& /*cumulativeQueryLengths*/,
    const at::Tensor& /*cumulativeKeyLengths*/,
    c10::SymInt /*maxQueryLength*/,
    c10::SymInt /*maxKeyLength*/,
    double /*dropout*/,
    bool isCausal,
    const at::Tensor& /*philoxSeed*/,
    const at::Tensor& /*philoxOffset*/,
    std::optional<double> scale) {
  if (!gradOutput.defined()) {
    return {};
  }
  TORCH_CHECK(
      !gradInputMask[3],
      "_scaled_dot_product_fused_attention_overrideable has no gradient with respect to attn_bias");
  std::array<at::Tensor, 3> gradients{at::empty_like(query), at::empty_like(key), at::empty_like(value)};
  launchInto(
      query.device(),
      "aten::scaled_dot_product_attention_backward",
      gradients,
      [gradOutput = backing(gradOutput),
       query = backing(query),
       key = backing(key),
       value = backing(value),
       mask = mask.defined() ? std::optional<at::Tensor>(backing(mask)) : std::nullopt,
       output = backing(output),
       logsumexp = backing(logsumexp),
       isCausal,
       scale] {
        auto [gradQuery, gradKey, gradValue] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            gradOutput, query, key, value, output, logsumexp, 0.0, isCausal, mask, scale);
        return std::array{gradQuery, gradKey, gradValue};
      },
      isLarge(query, key));
  return {gradients[0], gradients[1], gradients[2], at::Tensor()};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(chooseBackend));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(chooseBackend));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(fusedAttention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(fusedAttentionBackward));
}

} // namespace simdev

namespace at::native {
// F.scaled_dot_product_attention asks the stub and not the operator.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &simdev::chooseBackend)
} // namespace at::native
