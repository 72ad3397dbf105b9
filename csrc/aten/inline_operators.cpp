// The operators that get unboxed kernels over a delegate driver.
//
// Each would work boxed as well (inline.cpp).  These are what training and inference call thousands of times a second,
// where boxing the arguments costs a tenth of a small operator's time.  An operator is named by ATen's own declaration.
#include "aten/inline.h"

#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_foreach_zero_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_not_ops.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/erf_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/normal_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/uniform_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>

namespace simdev {

namespace {

struct Entry {
  void (*add)(torch::Library& library);
  const char* (*name)();
};

#define SIMDEV_OPERATOR(OPERATOR) \
  {&registerInline<at::_ops::OPERATOR>, &detail::InlineKernel<at::_ops::OPERATOR>::name},
// clang-format off
constexpr Entry kOperators[] = {
    // Arithmetic.
    SIMDEV_OPERATOR(add_Tensor) SIMDEV_OPERATOR(add__Tensor) SIMDEV_OPERATOR(sub_Tensor)
    SIMDEV_OPERATOR(sub__Tensor) SIMDEV_OPERATOR(mul_Tensor) SIMDEV_OPERATOR(mul__Tensor)
    SIMDEV_OPERATOR(div_Tensor) SIMDEV_OPERATOR(div__Tensor) SIMDEV_OPERATOR(add_out) SIMDEV_OPERATOR(mul_out)
    SIMDEV_OPERATOR(div_out) SIMDEV_OPERATOR(neg) SIMDEV_OPERATOR(abs) SIMDEV_OPERATOR(sin) SIMDEV_OPERATOR(cos)
    SIMDEV_OPERATOR(tanh) SIMDEV_OPERATOR(exp) SIMDEV_OPERATOR(log) SIMDEV_OPERATOR(sqrt) SIMDEV_OPERATOR(rsqrt)
    SIMDEV_OPERATOR(reciprocal) SIMDEV_OPERATOR(sigmoid) SIMDEV_OPERATOR(erf) SIMDEV_OPERATOR(pow_Tensor_Scalar)
    SIMDEV_OPERATOR(pow_Tensor_Tensor) SIMDEV_OPERATOR(clamp) SIMDEV_OPERATOR(clamp_min) SIMDEV_OPERATOR(maximum)
    SIMDEV_OPERATOR(minimum) SIMDEV_OPERATOR(relu) SIMDEV_OPERATOR(relu_) SIMDEV_OPERATOR(gelu)
    SIMDEV_OPERATOR(gelu_backward) SIMDEV_OPERATOR(silu) SIMDEV_OPERATOR(silu_backward)
    SIMDEV_OPERATOR(threshold_backward) SIMDEV_OPERATOR(tanh_backward) SIMDEV_OPERATOR(sigmoid_backward)
    SIMDEV_OPERATOR(leaky_relu)
    // Matrix products, convolutions.
    SIMDEV_OPERATOR(mm) SIMDEV_OPERATOR(addmm) SIMDEV_OPERATOR(bmm) SIMDEV_OPERATOR(baddbmm) SIMDEV_OPERATOR(dot)
    SIMDEV_OPERATOR(convolution) SIMDEV_OPERATOR(convolution_backward)
    // Reductions, softmax, losses.
    SIMDEV_OPERATOR(sum) SIMDEV_OPERATOR(sum_dim_IntList) SIMDEV_OPERATOR(mean) SIMDEV_OPERATOR(mean_dim)
    SIMDEV_OPERATOR(argmax) SIMDEV_OPERATOR(cumsum) SIMDEV_OPERATOR(amax) SIMDEV_OPERATOR(max)
    SIMDEV_OPERATOR(_softmax) SIMDEV_OPERATOR(_softmax_backward_data) SIMDEV_OPERATOR(_log_softmax)
    SIMDEV_OPERATOR(_log_softmax_backward_data) SIMDEV_OPERATOR(nll_loss_forward) SIMDEV_OPERATOR(nll_loss_backward)
    SIMDEV_OPERATOR(mse_loss) SIMDEV_OPERATOR(mse_loss_backward)
    // Normalisation, dropout, embeddings, pooling.
    SIMDEV_OPERATOR(native_layer_norm) SIMDEV_OPERATOR(native_layer_norm_backward)
    SIMDEV_OPERATOR(native_batch_norm) SIMDEV_OPERATOR(native_batch_norm_backward)
    SIMDEV_OPERATOR(native_group_norm) SIMDEV_OPERATOR(native_dropout) SIMDEV_OPERATOR(native_dropout_backward)
    SIMDEV_OPERATOR(embedding) SIMDEV_OPERATOR(embedding_dense_backward) SIMDEV_OPERATOR(max_pool2d_with_indices)
    SIMDEV_OPERATOR(max_pool2d_with_indices_backward) SIMDEV_OPERATOR(_adaptive_avg_pool2d)
    SIMDEV_OPERATOR(_adaptive_avg_pool2d_backward) SIMDEV_OPERATOR(avg_pool2d) SIMDEV_OPERATOR(avg_pool2d_backward)
    // Copies, factories, indexing.
    SIMDEV_OPERATOR(_to_copy) SIMDEV_OPERATOR(copy_) SIMDEV_OPERATOR(clone) SIMDEV_OPERATOR(empty_like)
    SIMDEV_OPERATOR(zeros_like) SIMDEV_OPERATOR(cat) SIMDEV_OPERATOR(fill__Scalar) SIMDEV_OPERATOR(zero_)
    SIMDEV_OPERATOR(masked_fill_Scalar) SIMDEV_OPERATOR(masked_fill__Scalar) SIMDEV_OPERATOR(where_self)
    SIMDEV_OPERATOR(index_select) SIMDEV_OPERATOR(gather)
    // Comparisons.
    SIMDEV_OPERATOR(eq_Tensor) SIMDEV_OPERATOR(eq_Scalar) SIMDEV_OPERATOR(ne_Tensor) SIMDEV_OPERATOR(ne_Scalar)
    SIMDEV_OPERATOR(lt_Tensor) SIMDEV_OPERATOR(lt_Scalar) SIMDEV_OPERATOR(gt_Tensor) SIMDEV_OPERATOR(gt_Scalar)
    SIMDEV_OPERATOR(le_Scalar) SIMDEV_OPERATOR(ge_Scalar) SIMDEV_OPERATOR(logical_not) SIMDEV_OPERATOR(bitwise_not)
    SIMDEV_OPERATOR(bitwise_and_Tensor) SIMDEV_OPERATOR(bitwise_or_Tensor)
    // In place, random.
    SIMDEV_OPERATOR(addcmul_) SIMDEV_OPERATOR(addcdiv_) SIMDEV_OPERATOR(lerp__Scalar) SIMDEV_OPERATOR(sqrt_)
    SIMDEV_OPERATOR(uniform_) SIMDEV_OPERATOR(normal_) SIMDEV_OPERATOR(bernoulli__float)
    SIMDEV_OPERATOR(_local_scalar_dense)
    // Optimisers.
    SIMDEV_OPERATOR(_foreach_add__Scalar) SIMDEV_OPERATOR(_foreach_add__List) SIMDEV_OPERATOR(_foreach_add__Tensor)
    SIMDEV_OPERATOR(_foreach_mul__Scalar) SIMDEV_OPERATOR(_foreach_mul__Tensor) SIMDEV_OPERATOR(_foreach_mul_Scalar)
    SIMDEV_OPERATOR(_foreach_lerp__Scalar) SIMDEV_OPERATOR(_foreach_addcmul__Scalar)
    SIMDEV_OPERATOR(_foreach_addcdiv__Scalar) SIMDEV_OPERATOR(_foreach_addcdiv__ScalarList)
    SIMDEV_OPERATOR(_foreach_sqrt) SIMDEV_OPERATOR(_foreach_sqrt_) SIMDEV_OPERATOR(_foreach_div__ScalarList)
    SIMDEV_OPERATOR(_foreach_div__Scalar) SIMDEV_OPERATOR(_foreach_div_ScalarList)
    SIMDEV_OPERATOR(_foreach_norm_Scalar) SIMDEV_OPERATOR(_foreach_zero_) SIMDEV_OPERATOR(_fused_adamw_)
    SIMDEV_OPERATOR(_fused_adam_) SIMDEV_OPERATOR(_fused_sgd_)
};
// clang-format on
#undef SIMDEV_OPERATOR

} // namespace

std::vector<std::string> registerUnboxedInlineKernels(torch::Library& library) {
  std::vector<std::string> names;
  for (const Entry& entry : kOperators) {
    entry.add(library);
    names.emplace_back(entry.name());
  }
  return names;
}

} // namespace simdev
