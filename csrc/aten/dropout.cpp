// Dropout: native_dropout, which F.dropout and everything built on it reaches on this device, and the older
// _fused_dropout.  One native kernel draws the mask and scales the input.
#include "csrc/aten/factories.h"
#include "csrc/aten/launch.h"
#include "csrc/aten/native/kernel_launch.h"
#include "csrc/aten/native/random_kernels.h"
#include "csrc/aten/random.h"
#include "csrc/driver/driver.h"

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

#include <tuple>

namespace simdev {

namespace {

using MaskedTensor = std::tuple<at::Tensor, at::Tensor>; // output, mask

// Keeps each element with probability `keep`, multiplied by `scale`; the others become 0.
MaskedTensor launchDropout(
    const char* name,
    const at::Tensor& self,
    double keep,
    double scale,
    c10::ScalarType maskType,
    const std::optional<at::Generator>& generator) {
  const c10::Device device = self.device();
  at::Tensor output = emptyLike(self);
  at::Tensor mask = emptyLike(self, maskType);
  const int64_t count = self.numel();
  if (count == 0) {
    return {std::move(output), std::move(mask)};
  }
  const PhiloxState state =
      getGeneratorOrDefault(generator, device.index()).reserve(static_cast<uint64_t>(count));
  const KernelFunction kernel =
      native::hasNativeKernels() ? native::dropoutKernel(self.scalar_type()) : nullptr;
  if (kernel == nullptr) { // complex numbers, or a chip without native kernels
    launch(
        device,
        name,
        [self = backing(self),
         output = backing(output),
         mask = backing(mask),
         keep,
         scale,
         state,
         device]() mutable {
          mask.bernoulli_(keep, kernelGenerator(state, device.index()));
          at::mul_out(output, self, mask).mul_(scale);
        },
        isLarge(self));
    return {std::move(output), std::move(mask)};
  }
  // Kernels go through the memory of all three tensors from front to back.
  at::Tensor input = self;
  if (self.strides() != output.strides()) {
    input = emptyLike(output);
    input.copy_(self);
  }
  const native::DropoutArguments arguments{
      native::kernelInput(input),
      native::kernelOutput(output),
      static_cast<bool*>(native::kernelOutput(mask)),
      count,
      state,
      keep,
      scale};
  native::launchKernel(device, name, kernel, native::gridForNumbers(count), arguments);
  return {std::move(output), std::move(mask)};
}

MaskedTensor nativeDropout(const at::Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (!train.value_or(true)) {
    at::Tensor mask = emptyLike(input, c10::ScalarType::Bool);
    return {input.clone(), mask.fill_(true)};
  }
  // As on the CPU, p = 1 multiplies by 0, so that infinities and NaN in the input are seen in the output.
  return launchDropout(
      "aten::native_dropout", input, 1 - p, p == 1 ? 0.0 : 1 / (1 - p), c10::ScalarType::Bool, std::nullopt);
}

// Its `p` is the probability to keep an element.
MaskedTensor fusedDropout(const at::Tensor& self, double p, std::optional<at::Generator> generator) {
  return launchDropout("aten::_fused_dropout", self, p, 1 / p, c10::ScalarType::Byte, generator);
}

at::Tensor maskedScale(const at::Tensor& self, const at::Tensor& mask, double scale) {
  return self.mul(mask).mul_(scale);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_dropout", TORCH_FN(nativeDropout));
  m.impl("_fused_dropout", TORCH_FN(fusedDropout));
  m.impl("_masked_scale", TORCH_FN(maskedScale));
}

} // namespace simdev
