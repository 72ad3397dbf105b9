// Operators that generated C++ calls by a C function of the device's name (aoti/simdev_aoti.h).
//
// They are the ones that Inductor does not treat as a fallback but calls itself, with memory that it has planned, and those
// that return more than tensors.  Every other operator is found in the dispatcher by name.
#include "compile/aoti_shim.h"

#include <ATen/ops/_int_mm.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_reduce.h>

#include <optional>
#include <utility>

using namespace simdev::aoti; // NOLINT: definitions of C functions, which have no namespace

AOTITorchError aoti_torch_simdev_mm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2) {
  return guarded([&] { at::mm_out(tensor(out), tensor(self), tensor(mat2)); });
}

AOTITorchError
aoti_torch_simdev__int_mm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2) {
  return guarded([&] { at::_int_mm_out(tensor(out), tensor(self), tensor(mat2)); });
}

AOTITorchError aoti_torch_simdev_bmm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2) {
  return guarded([&] { at::bmm_out(tensor(out), tensor(self), tensor(mat2)); });
}

AOTITorchError aoti_torch_simdev_addmm_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    AtenTensorHandle mat1,
    AtenTensorHandle mat2,
    double beta,
    double alpha) {
  return guarded([&] { at::addmm_out(tensor(out), tensor(self), tensor(mat1), tensor(mat2), beta, alpha); });
}

AOTITorchError aoti_torch_simdev_baddbmm_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    AtenTensorHandle batch1,
    AtenTensorHandle batch2,
    double beta,
    double alpha) {
  return guarded(
      [&] { at::baddbmm_out(tensor(out), tensor(self), tensor(batch1), tensor(batch2), beta, alpha); });
}

AOTITorchError aoti_torch_simdev_convolution(
    AtenTensorHandle input,
    AtenTensorHandle weight,
    AtenTensorHandle* bias,
    const int64_t* stride,
    int64_t stride_len,
    const int64_t* padding,
    int64_t padding_len,
    const int64_t* dilation,
    int64_t dilation_len,
    int32_t transposed,
    const int64_t* output_padding,
    int64_t output_padding_len,
    int64_t groups,
    AtenTensorHandle* ret_output) {
  return guarded([&] {
    *ret_output = newHandle(
        at::convolution(
            tensor(input),
            tensor(weight),
            bias == nullptr ? std::nullopt : std::make_optional(tensor(*bias)),
            at::IntArrayRef(stride, stride_len),
            at::IntArrayRef(padding, padding_len),
            at::IntArrayRef(dilation, dilation_len),
            transposed != 0,
            at::IntArrayRef(output_padding, output_padding_len),
            groups));
  });
}

AOTITorchError aoti_torch_simdev_mkldnn_rnn_layer(
    AtenTensorHandle input,
    AtenTensorHandle weight_ih,
    AtenTensorHandle weight_hh,
    AtenTensorHandle bias_ih,
    AtenTensorHandle bias_hh,
    AtenTensorHandle hx,
    AtenTensorHandle cx,
    int32_t reverse,
    const int64_t* batch_sizes,
    int64_t batch_sizes_len,
    int64_t mode,
    int64_t hidden_size,
    int64_t num_layers,
    int32_t has_biases,
    int32_t bidirectional,
    int32_t batch_first,
    int32_t train,
    AtenTensorHandle* ret_output,
    AtenTensorHandle* ret_hy,
    AtenTensorHandle* ret_cy,
    AtenTensorHandle* ret_workspace) {
  return guarded([&] {
    auto [output, hy, cy, workspace] = at::mkldnn_rnn_layer(
        tensor(input),
        tensor(weight_ih),
        tensor(weight_hh),
        tensor(bias_ih),
        tensor(bias_hh),
        tensor(hx),
        tensor(cx),
        reverse != 0,
        at::IntArrayRef(batch_sizes, batch_sizes_len),
        mode,
        hidden_size,
        num_layers,
        has_biases != 0,
        bidirectional != 0,
        batch_first != 0,
        train != 0);
    *ret_output = newHandle(std::move(output));
    *ret_hy = newHandle(std::move(hy));
    *ret_cy = newHandle(std::move(cy));
    *ret_workspace = newHandle(std::move(workspace));
  });
}

AOTITorchError aoti_torch_simdev_randint_low_out(
    AtenTensorHandle out,
    int64_t low,
    int64_t high,
    const int64_t* size,
    int64_t size_len) {
  return guarded([&] { at::randint_out(tensor(out), low, high, at::IntArrayRef(size, size_len)); });
}

AOTITorchError aoti_torch_simdev_scatter_src_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    int64_t dim,
    AtenTensorHandle index,
    AtenTensorHandle src) {
  return guarded([&] { at::scatter_out(tensor(out), tensor(self), dim, tensor(index), tensor(src)); });
}

AOTITorchError aoti_torch_simdev_scatter_value_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    int64_t dim,
    AtenTensorHandle index,
    double value) {
  return guarded([&] { at::scatter_out(tensor(out), tensor(self), dim, tensor(index), value); });
}

AOTITorchError aoti_torch_simdev_scatter_reduce_two_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    int64_t dim,
    AtenTensorHandle index,
    AtenTensorHandle src,
    const char* reduce,
    int32_t include_self) {
  return guarded([&] {
    at::scatter_reduce_out(
        tensor(out), tensor(self), dim, tensor(index), tensor(src), reduce, include_self != 0);
  });
}

AOTITorchError
aoti_torch_simdev_view_dtype(AtenTensorHandle self, int32_t dtype, AtenTensorHandle* ret_view) {
  return guarded([&] { *ret_view = newHandle(tensor(self).view(static_cast<at::ScalarType>(dtype))); });
}

AOTITorchError aoti_torch_simdev__scaled_dot_product_fused_attention_overrideable(
    AtenTensorHandle query,
    AtenTensorHandle key,
    AtenTensorHandle value,
    AtenTensorHandle* attn_bias,
    double dropout_p,
    int32_t is_causal,
    int32_t return_debug_mask,
    double* scale,
    AtenTensorHandle* ret_output,
    AtenTensorHandle* ret_logsumexp,
    AtenTensorHandle* ret_cum_seq_q,
    AtenTensorHandle* ret_cum_seq_k,
    int64_t* ret_max_q,
    int64_t* ret_max_k,
    AtenTensorHandle* ret_philox_seed,
    AtenTensorHandle* ret_philox_offset,
    AtenTensorHandle* ret_debug_attn_mask) {
  return guarded([&] {
    auto [output, logsumexp, cumSeqQ, cumSeqK, maxQ, maxK, seed, offset, debugMask] =
        at::_scaled_dot_product_fused_attention_overrideable(
            tensor(query),
            tensor(key),
            tensor(value),
            attn_bias == nullptr ? std::nullopt : std::make_optional(tensor(*attn_bias)),
            dropout_p,
            is_causal != 0,
            return_debug_mask != 0,
            scale == nullptr ? std::nullopt : std::make_optional(*scale));
    const std::pair<AtenTensorHandle*, at::Tensor*> tensors[] = {
        {ret_output, &output},
        {ret_logsumexp, &logsumexp},
        {ret_cum_seq_q, &cumSeqQ},
        {ret_cum_seq_k, &cumSeqK},
        {ret_philox_seed, &seed},
        {ret_philox_offset, &offset},
        {ret_debug_attn_mask, &debugMask}};
    for (const auto& [target, result] : tensors) {
      if (target != nullptr) {
        *target = newHandle(std::move(*result));
      }
    }
    const std::pair<int64_t*, int64_t> lengths[] = {
        {ret_max_q, maxQ.expect_int()}, {ret_max_k, maxK.expect_int()}};
    for (const auto& [target, length] : lengths) {
      if (target != nullptr) {
        *target = length;
      }
    }
  });
}
