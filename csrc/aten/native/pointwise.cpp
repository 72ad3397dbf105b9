// The native tier's pointwise operators: those that dominate the latency of small work (add, sub, mul, div, relu, fill).
//
// Each takes the plain case (dense float or double tensors of one shape, or a Python number) to a native kernel and
// passes everything else to ATen's composite kernel, which comes back through the launched tier.
#include "aten/native/pointwise_kernels.h"

#include "aten/backing.h"
#include "aten/factories.h"
#include "aten/launch.h"
#include "aten/launched.h"
#include "aten/native/kernel_launch.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <torch/library.h>

#include <cstring>

namespace simdev::native {

namespace {

std::optional<ElementType> elementType(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return ElementType::Float;
    case c10::ScalarType::Double:
      return ElementType::Double;
    default:
      return std::nullopt;
  }
}

// Dense, without gaps or overlap: a kernel may walk the memory instead of the indices.
bool isDense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense();
}

bool sameLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device();
}

std::optional<double> pythonNumber(const at::Tensor& tensor) {
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number() || !tensor.is_cpu()) {
    return std::nullopt;
  }
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      return *tensor.const_data_ptr<double>();
    case c10::ScalarType::Long:
      return static_cast<double>(*tensor.const_data_ptr<int64_t>());
    default:
      return std::nullopt;
  }
}

// Whether the operation was launched natively.  `out` undefined: allocate it.
bool launchBinary(
    const char* name,
    BinaryOp op,
    const at::Tensor& self,
    const at::Tensor& other,
    double alpha,
    at::Tensor& out) {
  if (!hasNativeKernels() || !self.is_privateuseone() || !isDense(self)) {
    return false;
  }
  const auto type = elementType(self);
  if (!type.has_value()) {
    return false;
  }
  BinaryArguments arguments{nullptr, nullptr, nullptr, self.numel(), 0.0, alpha};
  bool isTensor = false;
  if (other.is_privateuseone()) {
    if (!sameLayout(self, other)) {
      return false;
    }
    isTensor = true;
  } else if (const auto number = pythonNumber(other)) {
    arguments.scalar = *number;
  } else {
    return false;
  }
  if (!out.defined()) {
    out = emptyStrided(self.sizes(), self.strides(), self.scalar_type(), self.device());
  }
  if (arguments.count == 0) {
    return true;
  }
  arguments.out = kernelOutput(out);
  arguments.a = kernelInput(self);
  arguments.b = isTensor ? kernelInput(other) : nullptr;
  launchKernel(self.device(), name, binaryKernel(op, *type, !isTensor), gridFor(self.nbytes()), arguments);
  return true;
}

BinaryOp addOp(double alpha) {
  return alpha == 1.0 ? BinaryOp::Add : BinaryOp::AddScaled;
}

// Numbers that a double holds exactly as the kernel will use them.
bool isRealAlpha(const at::Scalar& alpha) {
  return alpha.isFloatingPoint() || alpha.isIntegral(/*includeBool=*/false);
}

#define SIMDEV_COMPOSITE(NAME, OPERATOR, ...)      \
  static const std::string caller = "aten::" NAME; \
  StructuredCallGuard guard(caller);               \
  return at::_ops::OPERATOR::redispatch(kCompositeKeys, __VA_ARGS__)

at::Tensor add(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  at::Tensor out;
  if (isRealAlpha(alpha) &&
      launchBinary("aten::add.Tensor", addOp(alpha.toDouble()), self, other, alpha.toDouble(), out)) {
    return out;
  }
  SIMDEV_COMPOSITE("add", add_Tensor, self, other, alpha);
}

at::Tensor& addInPlace(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  if (isRealAlpha(alpha) &&
      launchBinary("aten::add_.Tensor", addOp(alpha.toDouble()), self, other, alpha.toDouble(), self)) {
    return self;
  }
  SIMDEV_COMPOSITE("add", add__Tensor, self, other, alpha);
}

at::Tensor sub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  at::Tensor out;
  if (isRealAlpha(alpha) && alpha.toDouble() == 1.0 &&
      launchBinary("aten::sub.Tensor", BinaryOp::Sub, self, other, 1.0, out)) {
    return out;
  }
  SIMDEV_COMPOSITE("sub", sub_Tensor, self, other, alpha);
}

at::Tensor& subInPlace(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  if (isRealAlpha(alpha) && alpha.toDouble() == 1.0 &&
      launchBinary("aten::sub_.Tensor", BinaryOp::Sub, self, other, 1.0, self)) {
    return self;
  }
  SIMDEV_COMPOSITE("sub", sub__Tensor, self, other, alpha);
}

#define SIMDEV_MULTIPLICATIVE(FUNCTION, NAME, OP, FUNCTIONAL, INPLACE)        \
  at::Tensor FUNCTION(const at::Tensor& self, const at::Tensor& other) {      \
    at::Tensor out;                                                           \
    if (launchBinary("aten::" NAME ".Tensor", OP, self, other, 1.0, out)) {   \
      return out;                                                             \
    }                                                                         \
    SIMDEV_COMPOSITE(NAME, FUNCTIONAL, self, other);                          \
  }                                                                           \
  at::Tensor& FUNCTION##InPlace(at::Tensor& self, const at::Tensor& other) {  \
    if (launchBinary("aten::" NAME "_.Tensor", OP, self, other, 1.0, self)) { \
      return self;                                                            \
    }                                                                         \
    SIMDEV_COMPOSITE(NAME, INPLACE, self, other);                             \
  }

SIMDEV_MULTIPLICATIVE(mul, "mul", BinaryOp::Mul, mul_Tensor, mul__Tensor)
SIMDEV_MULTIPLICATIVE(div, "div", BinaryOp::Div, div_Tensor, div__Tensor)

// Whether relu was launched natively.  `out` undefined: allocate it.
bool launchRelu(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() != c10::ScalarType::Bool, "Boolean inputs not supported for relu");
  const auto type = elementType(self);
  if (!hasNativeKernels() || !type.has_value() || !isDense(self)) {
    return false;
  }
  if (!out.defined()) {
    out = emptyStrided(self.sizes(), self.strides(), self.scalar_type(), self.device());
  }
  if (self.numel() > 0) {
    void* const output = kernelOutput(out);
    const UnaryArguments arguments{kernelInput(self), output, self.numel()};
    launchKernel(self.device(), "aten::relu", reluKernel(*type), gridFor(self.nbytes()), arguments);
  }
  return true;
}

at::Tensor relu(const at::Tensor& self) {
  at::Tensor out;
  return launchRelu(self, out) ? out : at::clamp_min(self, 0);
}

at::Tensor& reluInPlace(at::Tensor& self) {
  return launchRelu(self, self) ? self : at::clamp_min_(self, 0);
}

at::Tensor thresholdBackward(const at::Tensor& grad, const at::Tensor& self, const at::Scalar& threshold) {
  const auto type = elementType(self);
  if (!hasNativeKernels() || !type.has_value() || threshold.isComplex() || threshold.toDouble() != 0.0 ||
      !isDense(self) || !grad.is_privateuseone() || !sameLayout(grad, self)) {
    SIMDEV_COMPOSITE("threshold_backward", threshold_backward, grad, self, threshold);
  }
  at::Tensor out = emptyStrided(self.sizes(), self.strides(), self.scalar_type(), self.device());
  if (self.numel() > 0) {
    const ReluBackwardArguments arguments{
        kernelInput(grad), kernelInput(self), kernelOutput(out), self.numel()};
    launchKernel(
        self.device(),
        "aten::threshold_backward",
        reluBackwardKernel(*type),
        gridFor(self.nbytes()),
        arguments);
  }
  return out;
}

at::Tensor& fillScalar(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) {
    return self;
  }
  FillArguments arguments{};
  AT_DISPATCH_V2(
      self.scalar_type(),
      "fill_",
      AT_WRAP([&] {
        const auto element = value.to<scalar_t>(); // throws when the value does not fit, as on the CPU
        std::memcpy(arguments.element, &element, sizeof(element));
      }),
      AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
      AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
      AT_EXPAND(AT_FLOAT8_TYPES),
      c10::kComplexHalf,
      c10::kHalf,
      c10::kBFloat16,
      c10::kBool);
  if (!hasNativeKernels() || !isDense(self)) {
    launch(
        self.device(),
        "aten::fill_.Scalar",
        [self = backing(self), value] { self.fill_(value); },
        isLarge(self));
    return self;
  }
  arguments.out = kernelOutput(self);
  arguments.count = self.numel();
  arguments.elementSize = static_cast<uint32_t>(self.itemsize());
  launchKernel(self.device(), "aten::fill_.Scalar", fillKernel, gridFor(self.nbytes()), arguments);
  return self;
}

at::Tensor& fillTensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(
      value.dim() == 0,
      "fill_ only supports 0-dimension value tensor but got tensor with ",
      value.dim(),
      " dimensions.");
  if (value.is_cpu()) {
    return fillScalar(self, value.item());
  }
  TORCH_CHECK(
      value.device() == self.device(),
      "Expected all tensors to be on the same device, but found at least two devices, ",
      self.device(),
      " and ",
      value.device(),
      "!");
  launch(
      self.device(),
      "aten::fill_.Tensor",
      [self = backing(self), value = backing(value)] { self.fill_(value); },
      isLarge(self));
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  if (self.numel() == 0) {
    return self;
  }
  if (isDense(self)) {
    driver().memsetAsync(
        self.mutable_data_ptr(), 0, self.nbytes(), currentStreamHandle(self.device().index()));
  } else {
    launch(self.device(), "aten::zero_", [self = backing(self)] { self.zero_(); }, isLarge(self));
  }
  return self;
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("add.Tensor", TORCH_FN(add));
  m.impl("add_.Tensor", TORCH_FN(addInPlace));
  m.impl("sub.Tensor", TORCH_FN(sub));
  m.impl("sub_.Tensor", TORCH_FN(subInPlace));
  m.impl("mul.Tensor", TORCH_FN(mul));
  m.impl("mul_.Tensor", TORCH_FN(mulInPlace));
  m.impl("div.Tensor", TORCH_FN(div));
  m.impl("div_.Tensor", TORCH_FN(divInPlace));
  m.impl("relu", TORCH_FN(relu));
  m.impl("relu_", TORCH_FN(reluInPlace));
  m.impl("threshold_backward", TORCH_FN(thresholdBackward));
  m.impl("fill_.Scalar", TORCH_FN(fillScalar));
  m.impl("fill_.Tensor", TORCH_FN(fillTensor));
  m.impl("zero_", TORCH_FN(zero));
}

} // namespace simdev::native
