// Batch, layer and group normalisation, forward and backward.
//
// The generic tier would serve them too.  Here their outputs' shapes are worked out in C++, because the operators' Meta
// kernels are Python and these dominate the first steps of training.  Shapes and dtypes are those of ATen's CPU
// kernels; running statistics are updated by the kernel, in stream order.
#include "aten/native/batch_norm_kernels.h"
#include "aten/native/kernel_launch.h"
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/launch_into.h"

#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <c10/util/DimVector.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace simdev {

namespace {

using OptionalTensor = std::optional<at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Mask = std::array<bool, 3>;

ThreeTensors asTuple(std::array<at::Tensor, 3> tensors) {
  return {std::move(tensors[0]), std::move(tensors[1]), std::move(tensors[2])};
}

std::array<at::Tensor, 3> asArray(ThreeTensors tensors) {
  auto& [first, second, third] = tensors;
  return {std::move(first), std::move(second), std::move(third)};
}

at::Tensor valueOr(const OptionalTensor& tensor) {
  return tensor.value_or(at::Tensor());
}

// The dtype of statistics and of parameters' gradients: low-precision inputs may come with parameters in float.
template <typename... Parameters>
c10::ScalarType parameterType(const at::Tensor& input, const Parameters&... parameters) {
  const bool mixed = at::native::is_mixed_type(input, valueOr(parameters)...);
  if (mixed) {
    at::native::check_mixed_data_type(input, valueOr(parameters)...);
  }
  return at::native::param_scalar_type(input, mixed);
}

// --- Batch normalisation ------------------------------------------------------------------------------------------

bool isInMemoryFormat(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.is_contiguous(c10::MemoryFormat::ChannelsLast) ||
         tensor.is_contiguous(c10::MemoryFormat::ChannelsLast3d);
}

bool isContiguous(const OptionalTensor& tensor) {
  return !isDefined(tensor) || tensor->is_contiguous();
}

// A contiguous float vector with an element for each channel, or nothing.
bool isPlainParameter(const OptionalTensor& tensor, int64_t channels) {
  return !isDefined(tensor) ||
         (tensor->scalar_type() == c10::kFloat && tensor->is_contiguous() && tensor->numel() == channels);
}

const float* inputOrNull(const OptionalTensor& tensor) {
  return isDefined(tensor) ? static_cast<const float*>(native::kernelInput(*tensor)) : nullptr;
}

float* outputOrNull(const OptionalTensor& tensor) {
  return isDefined(tensor) ? static_cast<float*>(native::kernelOutput(*tensor)) : nullptr;
}

// Whether the plain case (training, contiguous floats) was launched natively.
bool launchNativeBatchNorm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const OptionalTensor& runningMean,
    const OptionalTensor& runningVar,
    double momentum,
    double eps,
    const std::array<at::Tensor, 3>& outputs) {
  const int64_t channels = input.size(1);
  const int64_t count = channels == 0 ? 0 : input.numel() / channels;
  const bool plain = input.scalar_type() == c10::kFloat && input.is_contiguous() && count > 1 &&
                     isPlainParameter(weight, channels) && isPlainParameter(bias, channels) &&
                     isPlainParameter(runningMean, channels) && isPlainParameter(runningVar, channels);
  if (!plain || !native::hasNativeKernels()) {
    return false;
  }
  const native::BatchNormArguments arguments{
      static_cast<const float*>(native::kernelInput(input)),
      inputOrNull(weight),
      inputOrNull(bias),
      outputOrNull(runningMean),
      outputOrNull(runningVar),
      static_cast<float*>(native::kernelOutput(outputs[0])),
      static_cast<float*>(native::kernelOutput(outputs[1])),
      static_cast<float*>(native::kernelOutput(outputs[2])),
      input.size(0),
      channels,
      count / input.size(0),
      momentum,
      eps};
  native::launchKernel(
      input.device(),
      "aten::native_batch_norm",
      native::batchNormKernel,
      native::gridForParts(channels, input.nbytes()),
      arguments);
  return true;
}

bool launchNativeBatchNormBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& savedMean,
    const OptionalTensor& savedInvstd,
    const std::array<at::Tensor, 3>& outputs) {
  const int64_t channels = input.size(1);
  const bool plain = input.scalar_type() == c10::kFloat && input.is_contiguous() && input.numel() > 0 &&
                     gradOutput.scalar_type() == c10::kFloat && gradOutput.is_contiguous() &&
                     gradOutput.sizes() == input.sizes() && isDefined(savedMean) && isDefined(savedInvstd) &&
                     isPlainParameter(weight, channels) && isPlainParameter(savedMean, channels) &&
                     isPlainParameter(savedInvstd, channels);
  if (!plain || !native::hasNativeKernels()) {
    return false;
  }
  const native::BatchNormBackwardArguments arguments{
      static_cast<const float*>(native::kernelInput(gradOutput)),
      static_cast<const float*>(native::kernelInput(input)),
      inputOrNull(weight),
      inputOrNull(savedMean),
      inputOrNull(savedInvstd),
      outputOrNull(outputs[0]),
      outputOrNull(outputs[1]),
      outputOrNull(outputs[2]),
      input.size(0),
      channels,
      input.numel() / (input.size(0) * channels)};
  native::launchKernel(
      input.device(),
      "aten::native_batch_norm_backward",
      native::batchNormBackwardKernel,
      native::gridForParts(channels, 2 * input.nbytes()),
      arguments);
  return true;
}

ThreeTensors batchNorm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const OptionalTensor& runningMean,
    const OptionalTensor& runningVar,
    bool training,
    double momentum,
    double eps) {
  const c10::Device device = input.device();
  checkSameDevice(device, {weight, bias, runningMean, runningVar});
  const c10::ScalarType dtype = parameterType(input, weight, bias, runningMean, runningVar);
  const bool contiguous = isInMemoryFormat(input) && isContiguous(weight) && isContiguous(bias) &&
                          isContiguous(runningMean) && isContiguous(runningVar);
  const int64_t saved = training ? input.size(1) : 0;
  std::array<at::Tensor, 3> outputs{
      empty(
          input.sizes(),
          input.scalar_type(),
          device,
          contiguous ? input.suggest_memory_format() : c10::MemoryFormat::Contiguous),
      empty({saved}, dtype, device),
      empty({saved}, dtype, device)};
  if (training &&
      launchNativeBatchNorm(input, weight, bias, runningMean, runningVar, momentum, eps, outputs)) {
    return asTuple(std::move(outputs));
  }
  launchInto(
      device,
      "aten::native_batch_norm",
      outputs,
      [input = backing(input),
       weight = backing(weight),
       bias = backing(bias),
       runningMean = backing(runningMean),
       runningVar = backing(runningVar),
       training,
       momentum,
       eps] {
        return asArray(
            at::native_batch_norm(input, weight, bias, runningMean, runningVar, training, momentum, eps));
      },
      isLarge(input));
  return asTuple(std::move(outputs));
}

ThreeTensors batchNormBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& runningMean,
    const OptionalTensor& runningVar,
    const OptionalTensor& savedMean,
    const OptionalTensor& savedInvstd,
    bool training,
    double eps,
    Mask mask) {
  const c10::Device device = input.device();
  checkSameDevice(device, {gradOutput, weight, runningMean, runningVar, savedMean, savedInvstd});
  const c10::ScalarType dtype = parameterType(input, weight, runningMean, runningVar, savedMean, savedInvstd);
  std::array<at::Tensor, 3> outputs;
  if (mask[0]) {
    outputs[0] = empty(input.sizes(), input.scalar_type(), device, input.suggest_memory_format());
  }
  for (const size_t i : {1, 2}) {
    if (mask[i]) {
      outputs[i] = empty({input.size(1)}, dtype, device);
    }
  }
  if (training && launchNativeBatchNormBackward(gradOutput, input, weight, savedMean, savedInvstd, outputs)) {
    return asTuple(std::move(outputs));
  }
  launchInto(
      device,
      "aten::native_batch_norm_backward",
      outputs,
      [gradOutput = backing(gradOutput),
       input = backing(input),
       weight = backing(weight),
       runningMean = backing(runningMean),
       runningVar = backing(runningVar),
       savedMean = backing(savedMean),
       savedInvstd = backing(savedInvstd),
       training,
       eps,
       mask] {
        return asArray(
            at::native_batch_norm_backward(
                gradOutput,
                input,
                weight,
                runningMean,
                runningVar,
                savedMean,
                savedInvstd,
                training,
                eps,
                mask));
      },
      isLarge(input));
  return asTuple(std::move(outputs));
}

// --- Layer normalisation ------------------------------------------------------------------------------------------

ThreeTensors layerNorm(
    const at::Tensor& input,
    c10::IntArrayRef normalizedShape,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    double eps) {
  const c10::Device device = input.device();
  checkSameDevice(device, {weight, bias});
  at::native::_check_layer_norm_inputs(input, normalizedShape, valueOr(weight), valueOr(bias));
  const c10::ScalarType dtype = parameterType(input, weight, bias);
  // One mean for each position of the outer dimensions.
  c10::DimVector statistics(input.sizes());
  std::fill(statistics.end() - static_cast<ptrdiff_t>(normalizedShape.size()), statistics.end(), 1);
  std::array<at::Tensor, 3> outputs{
      empty(input.sizes(), input.scalar_type(), device),
      empty(statistics, dtype, device),
      empty(statistics, dtype, device)};
  launchInto(
      device,
      "aten::native_layer_norm",
      outputs,
      [input = backing(input),
       shape = c10::DimVector(normalizedShape),
       weight = backing(weight),
       bias = backing(bias),
       eps] { return asArray(at::native_layer_norm(input, shape, weight, bias, eps)); },
      isLarge(input));
  return asTuple(std::move(outputs));
}

ThreeTensors layerNormBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& input,
    c10::IntArrayRef normalizedShape,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    Mask mask) {
  const c10::Device device = input.device();
  checkSameDevice(device, {gradOutput, mean, rstd, weight, bias});
  const c10::ScalarType dtype = parameterType(input, weight, bias);
  std::array<at::Tensor, 3> outputs;
  if (mask[0]) {
    outputs[0] = empty(input.sizes(), input.scalar_type(), device);
  }
  for (const size_t i : {1, 2}) {
    if (mask[i]) {
      outputs[i] = empty(normalizedShape, dtype, device);
    }
  }
  launchInto(
      device,
      "aten::native_layer_norm_backward",
      outputs,
      [gradOutput = backing(gradOutput),
       input = backing(input),
       shape = c10::DimVector(normalizedShape),
       mean = backing(mean),
       rstd = backing(rstd),
       weight = backing(weight),
       bias = backing(bias),
       mask] {
        return asArray(
            at::native_layer_norm_backward(gradOutput, input, shape, mean, rstd, weight, bias, mask));
      },
      /*parallel=*/true); // sums in bfloat16 lose digits with one thread, which adds all rows up in a row
  return asTuple(std::move(outputs));
}

// --- Group normalisation ------------------------------------------------------------------------------------------

ThreeTensors groupNorm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    int64_t batch,
    int64_t channels,
    int64_t spatial,
    int64_t groups,
    double eps) {
  const c10::Device device = input.device();
  checkSameDevice(device, {weight, bias});
  const c10::ScalarType dtype = parameterType(input, weight, bias);
  std::array<at::Tensor, 3> outputs{
      empty(input.sizes(), input.scalar_type(), device, input.suggest_memory_format()),
      empty({batch, groups}, dtype, device),
      empty({batch, groups}, dtype, device)};
  launchInto(
      device,
      "aten::native_group_norm",
      outputs,
      [input = backing(input),
       weight = backing(weight),
       bias = backing(bias),
       batch,
       channels,
       spatial,
       groups,
       eps] {
        return asArray(at::native_group_norm(input, weight, bias, batch, channels, spatial, groups, eps));
      },
      isLarge(input));
  return asTuple(std::move(outputs));
}

ThreeTensors groupNormBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const OptionalTensor& weight,
    int64_t batch,
    int64_t channels,
    int64_t spatial,
    int64_t groups,
    Mask mask) {
  const c10::Device device = input.device();
  checkSameDevice(device, {gradOutput, mean, rstd, weight});
  const c10::ScalarType dtype = parameterType(input, weight);
  std::array<at::Tensor, 3> outputs;
  if (mask[0]) {
    outputs[0] = empty(input.sizes(), input.scalar_type(), device, input.suggest_memory_format());
  }
  for (const size_t i : {1, 2}) {
    if (mask[i]) {
      outputs[i] = empty({channels}, dtype, device);
    }
  }
  launchInto(
      device,
      "aten::native_group_norm_backward",
      outputs,
      [gradOutput = backing(gradOutput),
       input = backing(input),
       mean = backing(mean),
       rstd = backing(rstd),
       weight = backing(weight),
       batch,
       channels,
       spatial,
       groups,
       mask] {
        return asArray(
            at::native_group_norm_backward(
                gradOutput, input, mean, rstd, weight, batch, channels, spatial, groups, mask));
      },
      isLarge(input));
  return asTuple(std::move(outputs));
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", TORCH_FN(batchNorm));
  m.impl("native_batch_norm_backward", TORCH_FN(batchNormBackward));
  m.impl("native_layer_norm", TORCH_FN(layerNorm));
  m.impl("native_layer_norm_backward", TORCH_FN(layerNormBackward));
  m.impl("native_group_norm", TORCH_FN(groupNorm));
  m.impl("native_group_norm_backward", TORCH_FN(groupNormBackward));
}

} // namespace simdev
