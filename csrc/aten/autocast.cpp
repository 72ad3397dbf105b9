// Autocasting: which operators run in lower precision, in float, or in the widest type of their arguments.
//
// The lists and the kernels are ATen's, so that torch.autocast("simdev") casts what torch.autocast("cuda") casts.  What is in
// no list falls through.  Slow to compile: ATen's templates need the declarations of all operators.
#include <ATen/autocast_mode.h>

namespace simdev {

namespace {

at::Tensor
refuseBinaryCrossEntropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
      "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
      "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
      "safe to autocast.");
}

} // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at; // the lists name ATen's types as ATen does

#define SIMDEV_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(SIMDEV_LOWER_PRECISION)
#undef SIMDEV_LOWER_PRECISION

#define SIMDEV_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(SIMDEV_FP32)
#undef SIMDEV_FP32

#define SIMDEV_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(SIMDEV_FP32_SET_OPT_DTYPE)
#undef SIMDEV_FP32_SET_OPT_DTYPE

  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)

#define SIMDEV_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(SIMDEV_PROMOTE)
#undef SIMDEV_PROMOTE

  // Concatenations take a list, which the templates above do not promote.
  KERNEL_PRIVATEUSEONE(stack, promote)
  KERNEL_PRIVATEUSEONE(cat, promote)

  m.impl("binary_cross_entropy", TORCH_FN(refuseBinaryCrossEntropy));
}

} // namespace simdev
