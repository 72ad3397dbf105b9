// The loops.  Each is compiled for several x86-64 levels and the best is chosen when the library is loaded.
#include "aten/native/pointwise_kernels.h"

#include "aten/native/kernel_clones.h"
#include "aten/native/kernel_grid.h"

#include <cstring>

namespace simdev::native {

namespace {

// Function multiversioning does not reach templates: one function for each type and operation.
#define SIMDEV_BINARY(NAME, TYPE, EXPRESSION)                                                   \
  SIMDEV_CLONES void NAME##Vector_##TYPE(const KernelContext& context, const void* arguments) { \
    const auto& args = *static_cast<const BinaryArguments*>(arguments);                         \
    const auto [begin, end] = blockRange(context, args.count);                                  \
    const TYPE* a = static_cast<const TYPE*>(args.a);                                           \
    const TYPE* bs = static_cast<const TYPE*>(args.b);                                          \
    TYPE* out = static_cast<TYPE*>(args.out);                                                   \
    [[maybe_unused]] const TYPE alpha = static_cast<TYPE>(args.alpha);                          \
    _Pragma("GCC ivdep") for (int64_t i = begin; i < end; ++i) {                                \
      const TYPE x = a[i];                                                                      \
      const TYPE y = bs[i];                                                                     \
      out[i] = EXPRESSION;                                                                      \
    }                                                                                           \
  }                                                                                             \
  SIMDEV_CLONES void NAME##Scalar_##TYPE(const KernelContext& context, const void* arguments) { \
    const auto& args = *static_cast<const BinaryArguments*>(arguments);                         \
    const auto [begin, end] = blockRange(context, args.count);                                  \
    const TYPE* a = static_cast<const TYPE*>(args.a);                                           \
    TYPE* out = static_cast<TYPE*>(args.out);                                                   \
    const TYPE y = static_cast<TYPE>(args.scalar);                                              \
    [[maybe_unused]] const TYPE alpha = static_cast<TYPE>(args.alpha);                          \
    _Pragma("GCC ivdep") for (int64_t i = begin; i < end; ++i) {                                \
      const TYPE x = a[i];                                                                      \
      out[i] = EXPRESSION;                                                                      \
    }                                                                                           \
  }

#define SIMDEV_POINTWISE(TYPE)                                                                  \
  SIMDEV_BINARY(add, TYPE, x + y)                                                               \
  SIMDEV_BINARY(addScaled, TYPE, x + alpha * y)                                                 \
  SIMDEV_BINARY(sub, TYPE, x - y)                                                               \
  SIMDEV_BINARY(mul, TYPE, x* y)                                                                \
  SIMDEV_BINARY(div, TYPE, x / y)                                                               \
  SIMDEV_CLONES void relu_##TYPE(const KernelContext& context, const void* arguments) {         \
    const auto& args = *static_cast<const UnaryArguments*>(arguments);                          \
    const auto [begin, end] = blockRange(context, args.count);                                  \
    const TYPE* in = static_cast<const TYPE*>(args.in);                                         \
    TYPE* out = static_cast<TYPE*>(args.out);                                                   \
    _Pragma("GCC ivdep") for (int64_t i = begin; i < end; ++i) {                                \
      const TYPE x = in[i];                                                                     \
      out[i] = x < 0 ? TYPE(0) : x; /* NaN stays */                                             \
    }                                                                                           \
  }                                                                                             \
  SIMDEV_CLONES void reluBackward_##TYPE(const KernelContext& context, const void* arguments) { \
    const auto& args = *static_cast<const ReluBackwardArguments*>(arguments);                   \
    const auto [begin, end] = blockRange(context, args.count);                                  \
    const TYPE* grad = static_cast<const TYPE*>(args.grad);                                     \
    const TYPE* in = static_cast<const TYPE*>(args.in);                                         \
    TYPE* out = static_cast<TYPE*>(args.out);                                                   \
    _Pragma("GCC ivdep") for (int64_t i = begin; i < end; ++i) {                                \
      out[i] = in[i] <= 0 ? TYPE(0) : grad[i]; /* as ATen: a NaN input passes the gradient */   \
    }                                                                                           \
  }

SIMDEV_POINTWISE(float)
SIMDEV_POINTWISE(double)

template <typename Element>
void fillElements(Element* out, BlockRange range, const void* element) {
  Element value;
  std::memcpy(&value, element, sizeof(value));
  std::fill(out + range.begin, out + range.end, value);
}

struct Element16 {
  uint64_t words[2];
};

} // namespace

KernelFunction binaryKernel(BinaryOp op, ElementType type, bool scalar) {
#define SIMDEV_ROW(NAME)                        \
  {                                             \
    {NAME##Vector_float, NAME##Scalar_float}, { \
      NAME##Vector_double, NAME##Scalar_double  \
    }                                           \
  }
  static constexpr KernelFunction table[][2][2] = {
      SIMDEV_ROW(add), SIMDEV_ROW(addScaled), SIMDEV_ROW(sub), SIMDEV_ROW(mul), SIMDEV_ROW(div)};
#undef SIMDEV_ROW
  return table[static_cast<size_t>(op)][static_cast<size_t>(type)][scalar];
}

KernelFunction reluKernel(ElementType type) {
  return type == ElementType::Float ? relu_float : relu_double;
}

KernelFunction reluBackwardKernel(ElementType type) {
  return type == ElementType::Float ? reluBackward_float : reluBackward_double;
}

void fillKernel(const KernelContext& context, const void* arguments) {
  const auto& args = *static_cast<const FillArguments*>(arguments);
  const BlockRange range = blockRange(context, args.count);
  switch (args.elementSize) {
    case 1:
      return fillElements(static_cast<uint8_t*>(args.out), range, args.element);
    case 2:
      return fillElements(static_cast<uint16_t*>(args.out), range, args.element);
    case 4:
      return fillElements(static_cast<uint32_t*>(args.out), range, args.element);
    case 8:
      return fillElements(static_cast<uint64_t*>(args.out), range, args.element);
    default:
      return fillElements(static_cast<Element16*>(args.out), range, args.element);
  }
}

} // namespace simdev::native
