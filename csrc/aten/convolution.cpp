// Convolutions of every kind.  at::convolution checks and normalises its arguments (1-d becomes 2-d, unbatched becomes
// batched, empty is done without us) and calls the two operators here; so does its derivative.
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/launch_into.h"
#include "csrc/aten/native/kernel_launch.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>
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

  // ATen's own, on backing tensors.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias)
      const {
    return at::convolution(input, weight, bias, stride, padding, dilation, transposed, outputPadding, groups);
  }
  std::array<at::Tensor, 3> backward(
      const at::Tensor& gradOutput,
      const at::Tensor& input,
      const at::Tensor& weight,
      std::array<bool, 3> mask) const {
    const int64_t channels = gradOutput.size(1);
    auto [gradInput, gradWeight, gradBias] = at::convolution_backward(
        gradOutput,
        input,
        weight,
        mask[2] ? at::OptionalIntArrayRef(channels) : std::nullopt,
        stride,
        padding,
        dilation,
        transposed,
        outputPadding,
        groups,
        mask);
    return {gradInput, gradWeight, gradBias};
  }

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
bool isLargeConvolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& output,
    bool transposed) {
  const int64_t each = weight.numel() / std::max<int64_t>(weight.size(0), 1);
  return (transposed ? input : output).numel() * each >= kParallelMultiplications;
}

// --- Sharing out a batch ------------------------------------------------------------------------------------------
//
// oneDNN's team of threads meets at several barriers in a convolution.  For a small network on a device whose host is
// busy too that costs as much as the arithmetic, so batches that are large enough are convolved in parts, one for each thread.

constexpr int64_t kMinImagesPerPart = 16; // with fewer, ATen takes another kernel when it has one thread
constexpr int64_t kMaxParts = 8; // each has its own sums for the gradients of weight and bias

int64_t batchParts(const at::Tensor& input, bool transposed) {
  if (!native::hasNativeKernels() || transposed || input.scalar_type() != c10::kFloat || input.dim() != 4) {
    return 1;
  }
  const int64_t threads = computeThreads();
  const bool enough = input.size(0) % threads == 0 && input.size(0) / threads >= kMinImagesPerPart;
  return enough && threads <= kMaxParts ? threads : 1;
}

// Part `index` of `parts` of a backing tensor along its outermost dimension, as a tensor in memory of its own.
at::Tensor partOf(const at::Tensor& whole, int64_t parts, int64_t index) {
  const int64_t each = whole.size(0) / parts;
  const at::Tensor part = whole.narrow(0, each * index, each);
  return at::from_blob(part.mutable_data_ptr(), part.sizes(), part.strides(), part.options());
}

// Whether the batch is the outermost dimension in memory, so that its parts do not interleave.
bool batchIsOutermost(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.is_contiguous(c10::MemoryFormat::ChannelsLast);
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
  if (isDefined(bias)) {
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
  const bool large = isLargeConvolution(input, weight, output, transposed);
  const int64_t parts = large && batchIsOutermost(output) ? batchParts(input, transposed) : 1;
  if (parts > 1) {
    launchBlocks(
        input.device(),
        "aten::convolution",
        static_cast<uint32_t>(parts),
        [input = std::move(kernelInput),
         weight = std::move(kernelWeight),
         bias = std::move(kernelBias),
         output = backing(output),
         parameters = std::move(parameters),
         parts](int64_t part) {
          const at::Tensor result = partOf(output, parts, part);
          OutputPlacement placement(result);
          placement.finish(parameters.forward(partOf(input, parts, part), weight, bias));
        },
        [] {},
        /*parallel=*/false);
    return output;
  }
  launchInto(
      input.device(),
      "aten::convolution",
      output,
      [input = std::move(kernelInput),
       weight = std::move(kernelWeight),
       bias = std::move(kernelBias),
       parameters = std::move(parameters)] { return parameters.forward(input, weight, bias); },
      large);
  return output;
}

// The gradients of parts of the batch, from which those of the weight and the bias are summed afterwards.  The first three
// tensors are backing tensors.
void launchBackwardInParts(
    c10::Device device,
    at::Tensor gradOutput,
    at::Tensor input,
    at::Tensor weight,
    ConvolutionParameters parameters,
    const std::array<at::Tensor, 3>& gradients,
    int64_t parts) {
  // Row `part` of the sums is laid out as the gradient that they add up to.
  std::array<at::Tensor, 3> sums; // owns the memory until the work that uses it is in the stream
  for (const size_t i : {1, 2}) {
    if (gradients[i].defined()) {
      c10::DimVector sizes(gradients[i].sizes());
      c10::DimVector strides(gradients[i].strides());
      sizes.insert(sizes.begin(), parts);
      strides.insert(strides.begin(), gradients[i].numel());
      sums[i] = emptyStrided(sizes, strides, gradients[i].scalar_type(), gradients[i].device());
    }
  }
  const std::array<bool, 3> mask{gradients[0].defined(), gradients[1].defined(), gradients[2].defined()};
  const std::vector<at::Tensor> results = backing(gradients);
  const std::vector<at::Tensor> kernelSums = backing(sums);
  launchBlocks(
      device,
      "aten::convolution_backward",
      static_cast<uint32_t>(parts),
      [gradOutput = std::move(gradOutput),
       input = std::move(input),
       weight = std::move(weight),
       parameters = std::move(parameters),
       gradInput = results[0],
       sums = kernelSums,
       mask,
       parts](int64_t part) {
        std::array<at::Tensor, 3> own;
        if (mask[0]) {
          own[0] = partOf(gradInput, parts, part);
        }
        for (const size_t i : {1, 2}) {
          if (mask[i]) {
            own[i] = partOf(sums[i], parts, part).squeeze(0);
          }
        }
        OutputPlacement placement(own);
        placement.finish(
            parameters.backward(partOf(gradOutput, parts, part), partOf(input, parts, part), weight, mask));
      },
      [results, sums = kernelSums] {
        for (const size_t i : {1, 2}) {
          if (sums[i].defined()) {
            at::sum_out(const_cast<at::Tensor&>(results[i]), sums[i], 0);
          }
        }
      },
      sums[1].defined() && isLarge(sums[1]));
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
  // Gradients that are not asked for stay undefined.
  std::array<at::Tensor, 3> gradients;
  if (outputMask[0]) {
    gradients[0] = empty(input.sizes(), dtype, device, format);
  }
  if (outputMask[1]) {
    gradients[1] = empty(weight.sizes(), dtype, device, format);
  }
  if (outputMask[2]) {
    gradients[2] = empty({gradOutput.size(1)}, dtype, device);
  }
  const bool large = isLargeConvolution(input, weight, gradOutput, transposed);
  const bool separable = large && (!outputMask[0] || batchIsOutermost(gradients[0]));
  const int64_t parts = separable ? batchParts(input, transposed) : 1;
  if (parts > 1) {
    launchBackwardInParts(
        device,
        backing(gradOutput),
        std::move(kernelInput),
        std::move(kernelWeight),
        std::move(parameters),
        gradients,
        parts);
    return {gradients[0], gradients[1], gradients[2]};
  }
  launchInto(
      device,
      "aten::convolution_backward",
      gradients,
      [gradOutput = backing(gradOutput),
       input = std::move(kernelInput),
       weight = std::move(kernelWeight),
       parameters = std::move(parameters),
       outputMask] { return parameters.backward(gradOutput, input, weight, outputMask); },
      large);
  return {gradients[0], gradients[1], gradients[2]};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolutionBackward));
}

} // namespace simdev
