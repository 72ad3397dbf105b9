// Scaled dot product attention over a delegate driver: the delegate's choice among its own fused kernels.
//
// PyTorch's composition for F.scaled_dot_product_attention calls flash attention for devices in the tree only; for others it
// keeps the "overrideable" operators, which here are the delegate's flash attention.  The other choices it calls by name.
#include "aten/inline.h"

#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>

#include <array>
#include <cmath>

namespace simdev {

namespace {

enum Backend : int64_t { kMath = 0, kFlash = 1, kOverrideable = 4 }; // at::SDPBackend

// Flash attention takes head sizes that are multiples of 8.
at::Tensor padHeads(const at::Tensor& tensor) {
  const int64_t missing = (8 - tensor.size(-1) % 8) % 8;
  return missing == 0 ? tensor : at::constant_pad_nd(tensor, {0, missing});
}

at::Tensor cutHeads(const at::Tensor& tensor, int64_t size) {
  return tensor.size(-1) == size ? tensor : tensor.narrow(-1, 0, size);
}

double scaleFor(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

using Forward = std::tuple<
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    c10::SymInt,
    c10::SymInt,
    at::Tensor,
    at::Tensor,
    at::Tensor>;

Forward forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool isCausal,
    bool returnDebugMask,
    std::optional<double> scale) {
  TORCH_CHECK(
      !mask.has_value() || !mask->defined(),
      "_scaled_dot_product_fused_attention_overrideable: flash attention takes no attn_bias");
  InlineCall call("aten::_scaled_dot_product_fused_attention_overrideable");
  const at::Tensor q = call.argument(query);
  const at::Tensor k = call.argument(key);
  const at::Tensor v = call.argument(value);
  Forward results = call.run([&]() -> Forward {
    return at::_scaled_dot_product_flash_attention(
        padHeads(q), padHeads(k), padHeads(v), dropout, isCausal, returnDebugMask, scaleFor(query, scale));
  });
  std::get<0>(results) = cutHeads(std::get<0>(results), value.size(-1));
  return detail::inlineResult(call, std::move(results));
}

using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Backward backward(
    const at::Tensor& gradOutput,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& /*mask*/,
    std::array<bool, 4> /*gradInputMask*/,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& cumulativeQueryLengths,
    const at::Tensor& cumulativeKeyLengths,
    c10::SymInt maxQueryLength,
    c10::SymInt maxKeyLength,
    double dropout,
    bool isCausal,
    const at::Tensor& philoxSeed,
    const at::Tensor& philoxOffset,
    std::optional<double> scale) {
  if (!gradOutput.defined()) {
    return {};
  }
  InlineCall call("aten::_scaled_dot_product_fused_attention_overrideable_backward");
  const auto argument = [&](const at::Tensor& tensor) { return call.argument(tensor); };
  const at::Tensor q = argument(query);
  const at::Tensor k = argument(key);
  const at::Tensor v = argument(value);
  const at::Tensor grad = argument(gradOutput);
  const at::Tensor out = argument(output);
  auto [gradQuery, gradKey, gradValue] = call.run([&] {
    return at::_scaled_dot_product_flash_attention_backward(
        padHeads(grad),
        padHeads(q),
        padHeads(k),
        padHeads(v),
        padHeads(out),
        argument(logsumexp),
        argument(cumulativeQueryLengths),
        argument(cumulativeKeyLengths),
        maxQueryLength.expect_int(),
        maxKeyLength.expect_int(),
        dropout,
        isCausal,
        argument(philoxSeed),
        argument(philoxOffset),
        scaleFor(query, scale));
  });
  return {
      call.result(cutHeads(gradQuery, query.size(-1))),
      call.result(cutHeads(gradKey, key.size(-1))),
      call.result(cutHeads(gradValue, value.size(-1))),
      at::Tensor()};
}

} // namespace

int64_t chooseInlineAttention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool isCausal,
    std::optional<double> scale,
    bool enableGqa) {
  if (query.key_set().has_any(c10::python_ks)) {
    return kMath; // shapes without a device's memory, under a tracer
  }
  InlineCall call("aten::_fused_sdp_choice");
  const at::Tensor q = call.argument(query);
  const at::Tensor k = call.argument(key);
  const at::Tensor v = call.argument(value);
  const std::optional<at::Tensor> m = mask.has_value() ? std::optional(call.argument(*mask)) : std::nullopt;
  // The choice depends on whether there will be a backward pass.
  const bool trains =
      c10::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  q.set_requires_grad(trains);
  if (m.has_value() && m->defined() && mask->requires_grad()) {
    m->set_requires_grad(true);
  }
  const int64_t choice = call.run([&] {
    return at::_ops::_fused_sdp_choice::redispatch(
        InlineCall::kernelKeys(), q, k, v, m, dropout, isCausal, scale, enableGqa);
  });
  return choice == kFlash && kernelDispatchKey() != c10::DispatchKey::CPU ? kOverrideable : choice;
}

std::vector<std::string> registerInlineAttention(torch::Library& library) {
  if (kernelDispatchKey() == c10::DispatchKey::CPU) {
    return {}; // its flash attention is an operator like any other
  }
  constexpr const char* kForward = "aten::_scaled_dot_product_fused_attention_overrideable";
  constexpr const char* kBackward = "aten::_scaled_dot_product_fused_attention_overrideable_backward";
  library.impl(kForward, TORCH_FN(forward));
  library.impl(kBackward, TORCH_FN(backward));
  return {kForward, kBackward};
}

} // namespace simdev
