// Choice of the random kernels for this processor, and the kernels of distributions that are too rare for more than one
// version.  See random_kernels.h.
#include "csrc/aten/native/random_kernels.h"

#include "csrc/aten/native/random_kernels_impl.h"

namespace simdev::native {

#ifdef __x86_64__
// random_kernels_avx2.cpp, random_kernels_avx512.cpp
KernelFunction randomKernelAvx2(Distribution distribution, c10::ScalarType output);
KernelFunction randomKernelAvx512(Distribution distribution, c10::ScalarType output);
KernelFunction dropoutKernelAvx2(c10::ScalarType dtype);
KernelFunction dropoutKernelAvx512(c10::ScalarType dtype);
#endif

namespace {

// In (0, 1).
inline double openUniform53(uint32_t high, uint32_t low) {
  return uniform53(high, low) + 0x1p-54;
}

template <typename T>
struct LogNormal {
  static void draw(const RandomArguments& arguments, int64_t first, Chunk<Compute<T>>& values) {
    drawNormal(arguments, first, values);
    for (auto& value : values) {
      value = std::exp(value);
    }
  }
};

// Both compute in double, whatever they store: the tails of these distributions are long.
template <typename T, typename Function>
void drawFromUniform(
    const RandomArguments& arguments,
    int64_t first,
    Chunk<Compute<T>>& values,
    Function function) {
  Words high;
  Words low;
  drawWords(arguments, first, 0, high);
  drawWords(arguments, first, 1, low);
  for (int64_t i = 0; i < kChunk; ++i) {
    values[i] = static_cast<Compute<T>>(function(openUniform53(high[i], low[i])));
  }
}

template <typename T>
struct Cauchy {
  static void draw(const RandomArguments& arguments, int64_t first, Chunk<Compute<T>>& values) {
    constexpr double kPi = 3.141592653589793;
    drawFromUniform<T>(arguments, first, values, [&](double uniform) {
      return arguments.a + arguments.b * std::tan(kPi * (uniform - 0.5));
    });
  }
};

template <typename T>
struct Geometric {
  static void draw(const RandomArguments& arguments, int64_t first, Chunk<Compute<T>>& values) {
    const double scale = 1.0 / std::log1p(-arguments.a);
    drawFromUniform<T>(
        arguments, first, values, [&](double uniform) { return std::ceil(std::log(uniform) * scale); });
  }
};

enum class InstructionSet { Baseline, Avx2, Avx512 };

InstructionSet instructionSet() {
#ifdef __x86_64__
  static const InstructionSet best = __builtin_cpu_supports("x86-64-v4")   ? InstructionSet::Avx512
                                     : __builtin_cpu_supports("x86-64-v3") ? InstructionSet::Avx2
                                                                           : InstructionSet::Baseline;
  return best;
#else
  return InstructionSet::Baseline;
#endif
}

} // namespace

KernelFunction randomKernel(Distribution distribution, c10::ScalarType output) {
  switch (distribution) {
    case Distribution::LogNormal:
      return floatingKernel<LogNormal>(output);
    case Distribution::Cauchy:
      return floatingKernel<Cauchy>(output);
    case Distribution::Geometric: {
      KernelFunction integral = integralKernel<Geometric>(output);
      return integral != nullptr ? integral : floatingKernel<Geometric>(output);
    }
    default:
      break;
  }
#ifdef __x86_64__
  switch (instructionSet()) {
    case InstructionSet::Avx512:
      return randomKernelAvx512(distribution, output);
    case InstructionSet::Avx2:
      return randomKernelAvx2(distribution, output);
    default:
      break;
  }
#endif
  return hotKernel(distribution, output);
}

KernelFunction dropoutKernel(c10::ScalarType dtype) {
#ifdef __x86_64__
  switch (instructionSet()) {
    case InstructionSet::Avx512:
      return dropoutKernelAvx512(dtype);
    case InstructionSet::Avx2:
      return dropoutKernelAvx2(dtype);
    default:
      break;
  }
#endif
  return hotDropoutKernel(dtype);
}

} // namespace simdev::native
