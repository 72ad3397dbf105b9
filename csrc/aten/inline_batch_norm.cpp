// Batch normalisation over a delegate driver: the delegate's choice among its own libraries.
//
// PyTorch's composition asks whether the input *is* a CUDA tensor before it takes cuDNN, so that ours would get the
// native kernel: as correct, but it rounds otherwise, and networks with many such layers amplify that into gradients that
// are visibly not CUDA's.
#include "aten/inline.h"

#include <ATen/native/Normalization.h>
#include <ATen/ops/_batch_norm_impl_index_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/cudnn_batch_norm.h>

namespace simdev {

namespace {

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t>;

constexpr int64_t kCudnn = 1; // what _batch_norm_impl_index returns last

// Tensors that stand for others (fake ones, subclasses) have no memory to look at.
bool isPlain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone() && tensor.has_storage() &&
         !tensor.key_set().has(c10::DispatchKey::Python);
}

bool takesCudnn(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& runningMean,
    const at::Tensor& runningVar,
    bool training,
    double eps) {
  if (!isPlain(input) || input.numel() == 0) {
    return false;
  }
  DelegateDriver& delegate = startedDelegate();
  const auto asDelegates = [&](const at::Tensor& tensor) {
    return isPlain(tensor) ? delegateTensor(tensor, delegate) : tensor;
  };
  return at::native::_select_batch_norm_backend(
             asDelegates(input),
             asDelegates(weight),
             asDelegates(bias),
             asDelegates(runningMean),
             asDelegates(runningVar),
             training,
             eps) == at::native::BatchNormBackend::Cudnn;
}

// A composition like PyTorch's own, which it stands in for: autograd differentiates what it calls.
Results batchNorm(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& runningMean,
    const std::optional<at::Tensor>& runningVar,
    bool training,
    double momentum,
    double eps,
    bool cudnnEnabled) {
  const auto orUndefined = [](const std::optional<at::Tensor>& tensor) {
    return tensor.value_or(at::Tensor());
  };
  if (!takesCudnn(
          input,
          orUndefined(weight),
          orUndefined(bias),
          orUndefined(runningMean),
          orUndefined(runningVar),
          training,
          eps)) {
    return at::compositeimplicitautograd::_batch_norm_impl_index(
        input, weight, bias, runningMean, runningVar, training, momentum, eps, cudnnEnabled);
  }
  const auto contiguous = [](const std::optional<at::Tensor>& tensor) {
    return tensor.has_value() && tensor->defined() ? std::optional(tensor->contiguous()) : std::nullopt;
  };
  auto [output, mean, deviation, reserve] = at::cudnn_batch_norm(
      input.contiguous(input.suggest_memory_format()),
      weight->contiguous(),
      contiguous(bias),
      contiguous(runningMean),
      contiguous(runningVar),
      training,
      momentum,
      eps);
  return {std::move(output), std::move(mean), std::move(deviation), std::move(reserve), kCudnn};
}

} // namespace

std::vector<std::string> registerInlineBatchNorm(torch::Library& library) {
  constexpr const char* kName = "aten::_batch_norm_impl_index";
  static auto* const differentiable = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  library.impl(kName, TORCH_FN(batchNorm));
  differentiable->impl(kName, TORCH_FN(batchNorm));
  return {kName};
}

} // namespace simdev
