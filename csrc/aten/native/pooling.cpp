// Max pooling as the native tier serves it: dense NCHW float and double.  Everything else goes to ATen's kernel.
#include "aten/native/pooling_kernels.h"

#include "aten/factories.h"
#include "aten/launched.h"
#include "aten/native/kernel_launch.h"

#include <ATen/native/Pool.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <torch/library.h>

#include <array>

namespace simdev::native {

namespace {

struct Window {
  int64_t height;
  int64_t width;
};

// A list of one is for both extents; an empty stride means the kernel's size.
std::optional<Window> window(c10::IntArrayRef sizes) {
  if (sizes.empty() || sizes.size() > 2) {
    return std::nullopt;
  }
  return Window{sizes[0], sizes.size() == 1 ? sizes[0] : sizes[1]};
}

bool isNative(const at::Tensor& input) {
  return hasNativeKernels() && (input.dim() == 3 || input.dim() == 4) && input.is_contiguous() &&
         input.numel() > 0 && (input.scalar_type() == c10::kFloat || input.scalar_type() == c10::kDouble);
}

std::tuple<at::Tensor, at::Tensor> maxPool2dWithIndices(
    const at::Tensor& self,
    c10::IntArrayRef kernelSize,
    c10::IntArrayRef strideSize,
    c10::IntArrayRef paddingSize,
    c10::IntArrayRef dilationSize,
    bool ceilMode) {
  const auto kernel = window(kernelSize);
  const auto stride = strideSize.empty() ? kernel : window(strideSize);
  const auto padding = window(paddingSize);
  const auto dilation = window(dilationSize);
  if (!isNative(self) || !kernel || !stride || !padding || !dilation) {
    static const std::string caller = "aten::max_pool2d_with_indices";
    StructuredCallGuard guard(caller);
    return at::_ops::max_pool2d_with_indices::redispatch(
        kCompositeKeys, self, kernelSize, strideSize, paddingSize, dilationSize, ceilMode);
  }
  const int64_t inputHeight = self.size(-2);
  const int64_t inputWidth = self.size(-1);
  const int64_t outputHeight = at::native::pooling_output_shape<int64_t>(
      inputHeight, kernel->height, padding->height, stride->height, dilation->height, ceilMode);
  const int64_t outputWidth = at::native::pooling_output_shape<int64_t>(
      inputWidth, kernel->width, padding->width, stride->width, dilation->width, ceilMode);
  at::native::pool2d_shape_check(
      self,
      kernel->height,
      kernel->width,
      stride->height,
      stride->width,
      padding->height,
      padding->width,
      dilation->height,
      dilation->width,
      self.size(-3),
      inputHeight,
      inputWidth,
      outputHeight,
      outputWidth,
      c10::MemoryFormat::Contiguous);

  c10::DimVector sizes(self.sizes());
  sizes[sizes.size() - 2] = outputHeight;
  sizes[sizes.size() - 1] = outputWidth;
  at::Tensor output = empty(sizes, self.scalar_type(), self.device());
  at::Tensor indices = empty(sizes, c10::kLong, self.device());
  const int64_t planes = self.numel() / (inputHeight * inputWidth);
  const MaxPool2dArguments arguments{
      kernelInput(self),
      kernelOutput(output),
      static_cast<int64_t*>(kernelOutput(indices)),
      planes,
      inputHeight,
      inputWidth,
      outputHeight,
      outputWidth,
      kernel->height,
      kernel->width,
      stride->height,
      stride->width,
      padding->height,
      padding->width,
      dilation->height,
      dilation->width};
  launchKernel(
      self.device(),
      "aten::max_pool2d_with_indices",
      maxPool2dKernel(self.scalar_type() == c10::kDouble),
      gridForParts(planes, self.nbytes()),
      arguments);
  return {std::move(output), std::move(indices)};
}

at::Tensor maxPool2dWithIndicesBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& self,
    c10::IntArrayRef kernelSize,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool ceilMode,
    const at::Tensor& indices) {
  const bool dense = isNative(self) && gradOutput.is_privateuseone() &&
                     gradOutput.scalar_type() == self.scalar_type() && gradOutput.is_contiguous() &&
                     indices.is_contiguous() && indices.sizes() == gradOutput.sizes() &&
                     gradOutput.numel() > 0 && gradOutput.dim() == self.dim();
  if (!dense) {
    static const std::string caller = "aten::max_pool2d_with_indices_backward";
    StructuredCallGuard guard(caller);
    return at::_ops::max_pool2d_with_indices_backward::redispatch(
        kCompositeKeys, gradOutput, self, kernelSize, stride, padding, dilation, ceilMode, indices);
  }
  at::Tensor gradInput = empty(self.sizes(), self.scalar_type(), self.device());
  const int64_t inputSize = self.size(-2) * self.size(-1);
  const int64_t planes = self.numel() / inputSize;
  const MaxPool2dBackwardArguments arguments{
      kernelInput(gradOutput),
      static_cast<const int64_t*>(kernelInput(indices)),
      kernelOutput(gradInput),
      planes,
      inputSize,
      gradOutput.size(-2) * gradOutput.size(-1)};
  launchKernel(
      self.device(),
      "aten::max_pool2d_with_indices_backward",
      maxPool2dBackwardKernel(self.scalar_type() == c10::kDouble),
      gridForParts(planes, self.nbytes()),
      arguments);
  return gradInput;
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("max_pool2d_with_indices", TORCH_FN(maxPool2dWithIndices));
  m.impl("max_pool2d_with_indices_backward", TORCH_FN(maxPool2dWithIndicesBackward));
}

} // namespace simdev::native
