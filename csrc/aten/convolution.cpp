// Convolutions of every kind.  at::convolution checks and normalises its arguments (1-d becomes 2-d, unbatched becomes
// batched, empty is done without us) and calls the two operators here; so does its derivative.
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/launch_into.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <c10/util/DimVector.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace simdev {

namespace {

// What both directions share, owned so that a closure can keep it.
struct ConvolutionParameters {
  ConvolutionParameters(
      c10::IntArrayRef stride,
      c10::IntArrayRef padding,
      c10::IntArrayRef dilation,
      bool transposed,
      c10::IntArrayRef outputPadding,
      int64_t groups)
      : stride(stride),
        padding(padding),
        dilation(dilation),
        transposed(transposed),
        outputPadding(outputPadding),
        groups(groups) {}

  c10::DimVector stride;
  c10::DimVector padding;
  c10::DimVector dilation;
  bool transposed;
  c10::DimVector outputPadding;
  int64_t groups;
};

void checkSameType(const at::Tensor& input, const at::Tensor& other, const char* name) {
  TORCH_CHECK(
      input.options().type_equal(other.options()),
      "Input type (",
      input.toString(),
      ") and ",
      name,
      " type (",
      other.toString(),
      ") should be the same");
  checkSameDevice(input.device(), {other});
}

// The memory format that the kernels' own convolution gives its results, forward and backward.
c10::MemoryFormat memoryFormat(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    const ConvolutionParameters& parameters) {
  const at::native::ConvBackend backend = at::native::select_conv_backend(
      input,
      weight,
      bias,
      c10::fromIntArrayRefSlow(parameters.stride),
      c10::fromIntArrayRefSlow(parameters.padding),
      c10::fromIntArrayRefSlow(parameters.dilation),
      parameters.transposed,
      c10::fromIntArrayRefSlow(parameters.outputPadding),
      parameters.groups,
      std::nullopt);
  return at::native::_determine_backend_memory_format(input, weight, backend);
}

// Whether there is enough to compute for more than one thread.
bool isLarge(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output, bool transposed) {
  const int64_t each = weight.numel() / std::max<int64_t>(weight.size(0), 1);
  return (transposed ? input : output).numel() * each >= kParallelMultiplications;
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef outputPadding,
    int64_t groups) {
  checkSameType(input, weight, "weight");
  if (bias.has_value() && bias->defined()) {
    checkSameType(input, *bias, "bias");
  }
  ConvolutionParameters parameters(stride, padding, dilation, transposed, outputPadding, groups);
  const std::vector<int64_t> sizes =
      transposed ? at::native::conv_input_size(
                       input.sizes(), weight.sizes(), padding, outputPadding, stride, dilation, groups)
                 : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  at::Tensor kernelInput = backing(input);
  at::Tensor kernelWeight = backing(weight);
  std::optional<at::Tensor> kernelBias = backing(bias);
  at::Tensor output = empty(
      sizes,
      input.scalar_type(),
      input.device(),
      memoryFormat(kernelInput, kernelWeight, kernelBias, parameters));
  launchInto(
      input.device(),
      "aten::convolution",
      output,
      [input = std::move(kernelInput),
       weight = std::move(kernelWeight),
       bias = std::move(kernelBias),
       parameters = std::move(parameters)] {
        return at::convolution(
            input,
            weight,
            bias,
            parameters.stride,
            parameters.padding,
            parameters.dilation,
            parameters.transposed,
            parameters.outputPadding,
            parameters.groups);
      },
      isLarge(input, weight, output, transposed));
  return output;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolutionBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& input,
    const at::Tensor& weight,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef outputPadding,
    int64_t groups,
    std::array<bool, 3> outputMask) {
  checkSameType(input, weight, "weight");
  checkSameType(input, gradOutput, "grad_output");
  const c10::Device device = input.device();
  const c10::ScalarType dtype = input.scalar_type();
  ConvolutionParameters parameters(stride, padding, dilation, transposed, outputPadding, groups);
  at::Tensor kernelInput = backing(input);
  at::Tensor kernelWeight = backing(weight);
  const c10::MemoryFormat format = memoryFormat(kernelInput, kernelWeight, std::nullopt, parameters);
  const int64_t outputChannels = gradOutput.size(1);
  // Gradients that are not asked for stay undefined.
  std::array<at::Tensor, 3> gradients;
  if (outputMask[0]) {
    gradients[0] = empty(input.sizes(), dtype, device, format);
  }
  if (outputMask[1]) {
    gradients[1] = empty(weight.sizes(), dtype, device, format);
  }
  if (outputMask[2]) {
    gradients[2] = empty({outputChannels}, dtype, device);
  }
  launchInto(
      device,
      "aten::convolution_backward",
      gradients,
      [gradOutput = backing(gradOutput),
       input = std::move(kernelInput),
       weight = std::move(kernelWeight),
       parameters = std::move(parameters),
       outputChannels,
       outputMask] {
        auto [gradInput, gradWeight, gradBias] = at::convolution_backward(
            gradOutput,
            input,
            weight,
            outputMask[2] ? at::OptionalIntArrayRef(outputChannels) : std::nullopt,
            parameters.stride,
            parameters.padding,
            parameters.dilation,
            parameters.transposed,
            parameters.outputPadding,
            parameters.groups,
            outputMask);
        return std::array<at::Tensor, 3>{gradInput, gradWeight, gradBias};
      },
      isLarge(input, weight, gradOutput, transposed));
  return {gradients[0], gradients[1], gradients[2]};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolutionBackward));
}

} // namespace simdev
