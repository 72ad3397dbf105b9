// The hot random kernels, for the instruction set of the file that includes this.  See random_kernels.h.
//
// A kernel makes its numbers a chunk at a time: random words, then values in plain loops that the compiler vectorises,
// then a conversion to the output's type.  The last chunk is made in full like any other and stored in part, so that no
// element is computed differently because of where it lies.
#pragma once

#include "csrc/aten/native/philox.h"
#include "csrc/aten/native/random_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace simdev::native {
// See philox.h for why there is no external linkage.
namespace {

constexpr int64_t kChunk = 256; // elements

using Words = uint32_t[kChunk];
template <typename T>
using Chunk = T[kChunk];

// The type to compute values of type T in.
template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// --- Mathematics that vectorises, for the ranges needed here; exact to a few units in the last place ---------------

template <typename T>
struct Format;
template <>
struct Format<float> {
  using Bits = int32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kSqrtHalf = 0x3F3504F3;
  static constexpr int kLogTerms = 5;
  static constexpr int kTrigonometricTerms = 5;
};
template <>
struct Format<double> {
  using Bits = int64_t;
  static constexpr int kMantissa = 52;
  static constexpr Bits kSqrtHalf = 0x3FE6A09E667F3BCD;
  static constexpr int kLogTerms = 11;
  static constexpr int kTrigonometricTerms = 9;
};

// Natural logarithm of a normal number in (0, 1].
template <typename T>
inline T fastLog(T x) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  constexpr T kLn2 = T(0.6931471805599453);
  Bits bits;
  std::memcpy(&bits, &x, sizeof(bits));
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)), so that log(m) is small beside e * log(2), or e is 0.
  const Bits e = (bits - F::kSqrtHalf) >> F::kMantissa;
  bits -= e * (Bits{1} << F::kMantissa);
  T m;
  std::memcpy(&m, &bits, sizeof(m));
  // log(m) = 2 artanh(s) = 2 (s + s^3 / 3 + s^5 / 5 + ...)
  const T s = (m - 1) / (m + 1);
  const T t = s * s;
  T series = 0;
#pragma GCC unroll 16
  for (int i = F::kLogTerms; i > 0; --i) {
    series = t * (T(1) / T(2 * i + 1) + series);
  }
  return static_cast<T>(static_cast<int32_t>(e)) * kLn2 + 2 * (s + s * series);
}

// Cosine and sine of 2 pi `turns`, for `turns` in [0, 1].
template <typename T>
inline void fastCosSin(T turns, T& cosine, T& sine) {
  // The nearest quarter turn, and what is left: at most pi / 4.
  const int32_t quarter = static_cast<int32_t>(turns * 4 + T(0.5));
  const T x = (turns - static_cast<T>(quarter) * T(0.25)) * T(6.283185307179586);
  const T t = x * x;
  // The Taylor series, from the last term to the first.
  T s = 1;
  T c = 1;
#pragma GCC unroll 16
  for (int i = Format<T>::kTrigonometricTerms; i > 0; --i) {
    s = 1 - s * t * (T(1) / T(2 * i * (2 * i + 1)));
    c = 1 - c * t * (T(1) / T(2 * i * (2 * i - 1)));
  }
  s *= x;
  const bool swap = (quarter & 1) != 0;
  const T first = swap ? s : c;
  const T second = swap ? c : s;
  cosine = ((quarter + 1) & 2) != 0 ? -first : first;
  sine = (quarter & 2) != 0 ? -second : second;
}

// --- Uniform numbers ------------------------------------------------------------------------------------------

// In [0, 1), every value a multiple of 2^-bits, where T has so many bits: rounding to T never gives 1.
template <typename T>
inline constexpr int kUniformBits = std::is_same_v<T, c10::BFloat16> ? 8
                                    : std::is_same_v<T, c10::Half>   ? 11
                                                                     : 24;

// In (0, 1], small values finer than large ones, for logarithms.
inline float openUniform(uint32_t word) {
  return (static_cast<float>(static_cast<int32_t>(word >> 1)) + 0.5f) * 0x1p-31f;
}

// In [0, 1), every multiple of 2^-53.
inline double uniform53(uint32_t high, uint32_t low) {
  return (static_cast<double>(static_cast<int32_t>(high >> 5)) * 0x1p26 +
          static_cast<double>(static_cast<int32_t>(low >> 6))) *
         0x1p-53;
}

// For `word >> 1 <= threshold`, which has the probability that is asked for.
inline int32_t bernoulliThreshold(double probability) {
  return static_cast<int32_t>(std::llround(probability * 0x1p31) - 1);
}
inline bool bernoulli(uint32_t word, int32_t threshold) {
  return static_cast<int32_t>(word >> 1) <= threshold;
}

// --- Kernels ------------------------------------------------------------------------------------------------

// Calls body(first element, number of elements) for the chunks that are this block's share.
template <typename Body>
inline void forEachChunk(const KernelContext& context, int64_t count, Body&& body) {
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  const int64_t last = chunks * (context.block + 1) / context.grid;
  for (int64_t chunk = chunks * context.block / context.grid; chunk < last; ++chunk) {
    const int64_t first = chunk * kChunk;
    body(first, std::min(kChunk, count - first));
  }
}

// Fills the chunk with the words of elements `first`, first + 1, ...
template <typename Arguments>
inline void drawWords(const Arguments& arguments, int64_t first, uint32_t subsequence, Words& words) {
  const PhiloxPosition start = positionOf(arguments.philox);
  philox(start.seed, start.offset / 4 + static_cast<uint64_t>(first / 4), subsequence, words);
}

template <typename T, typename Value>
inline void store(const Chunk<Value>& values, T* output, int64_t count) {
  if (count == kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) {
      output[i] = static_cast<T>(values[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      output[i] = static_cast<T>(values[i]);
    }
  }
}

template <typename T>
struct Uniform {
  static void draw(const RandomArguments& arguments, int64_t first, Chunk<Compute<T>>& values) {
    using C = Compute<T>;
    const C from = static_cast<C>(arguments.a);
    const C to = static_cast<C>(arguments.b);
    const C range = to - from;
    Words words;
    drawWords(arguments, first, 0, words);
    if constexpr (std::is_same_v<T, double>) {
      Words low;
      drawWords(arguments, first, 1, low);
      for (int64_t i = 0; i < kChunk; ++i) {
        values[i] = from + range * uniform53(words[i], low[i]);
      }
    } else {
      constexpr int kBits = kUniformBits<T>;
      constexpr float kScale = 1.0f / (1 << kBits);
      for (int64_t i = 0; i < kChunk; ++i) {
        values[i] =
            from + range * (static_cast<float>(static_cast<int32_t>(words[i] >> (32 - kBits))) * kScale);
      }
    }
    // Rounding may reach the excluded bound, here and in the conversion to T.
    if (from != C(0) || to != C(1)) {
      for (int64_t i = 0; i < kChunk; ++i) {
        values[i] = static_cast<C>(static_cast<T>(values[i])) >= to ? from : values[i];
      }
    }
  }
};

// Box-Muller: two independent normal numbers from the uniform ones of elements 2i and 2i + 1.
template <typename C>
inline void drawNormal(const RandomArguments& arguments, int64_t first, Chunk<C>& values) {
  const C mean = static_cast<C>(arguments.a);
  const C deviation = static_cast<C>(arguments.b);
  C uniform[kChunk];
  Words words;
  drawWords(arguments, first, 0, words);
  if constexpr (std::is_same_v<C, double>) {
    Words low;
    drawWords(arguments, first, 1, low);
    for (int64_t i = 0; i < kChunk; ++i) {
      uniform[i] = 1.0 - uniform53(words[i], low[i]);
    }
  } else {
    for (int64_t i = 0; i < kChunk; ++i) {
      uniform[i] = openUniform(words[i]);
    }
  }
  for (int64_t i = 0; i < kChunk; i += 2) {
    const C radius = std::sqrt(-2 * fastLog(uniform[i]));
    C cosine;
    C sine;
    fastCosSin(uniform[i + 1], cosine, sine);
    values[i] = mean + deviation * (radius * cosine);
    values[i + 1] = mean + deviation * (radius * sine);
  }
}

template <typename T>
struct Normal {
  static void draw(const RandomArguments& arguments, int64_t first, Chunk<Compute<T>>& values) {
    drawNormal(arguments, first, values);
  }
};

template <typename T>
struct Exponential {
  static void draw(const RandomArguments& arguments, int64_t first, Chunk<Compute<T>>& values) {
    using C = Compute<T>;
    // Never 0: callers divide by the result.
    constexpr C kSmallest = std::numeric_limits<C>::epsilon() / 2;
    const C scale = static_cast<C>(1.0 / arguments.a);
    Words words;
    drawWords(arguments, first, 0, words);
    if constexpr (std::is_same_v<T, double>) {
      Words low;
      drawWords(arguments, first, 1, low);
      for (int64_t i = 0; i < kChunk; ++i) {
        values[i] = scale * std::max(-fastLog(1.0 - uniform53(words[i], low[i])), kSmallest);
      }
    } else {
      for (int64_t i = 0; i < kChunk; ++i) {
        values[i] = scale * std::max(-fastLog(openUniform(words[i])), kSmallest);
      }
    }
  }
};

template <typename T>
struct Integers {
  static void draw(const RandomArguments& arguments, int64_t first, Chunk<int64_t>& values) {
    // Some values come from one word more than others: with a range this small, from 4097 instead of 4096.
    constexpr uint64_t kRangeOf32Bits = uint64_t{1} << 20;
    const auto base = static_cast<uint64_t>(arguments.base);
    const uint64_t range = arguments.range;
    Words words;
    drawWords(arguments, first, 0, words);
    if (range != 0 && range <= kRangeOf32Bits) {
      for (int64_t i = 0; i < kChunk; ++i) {
        values[i] = static_cast<int64_t>(base + ((words[i] * range) >> 32));
      }
      return;
    }
    Words low;
    drawWords(arguments, first, 1, low);
    for (int64_t i = 0; i < kChunk; ++i) {
      const uint64_t word = (uint64_t{words[i]} << 32) | low[i];
      const uint64_t value =
          range == 0 ? word : static_cast<uint64_t>((static_cast<unsigned __int128>(word) * range) >> 64);
      values[i] = static_cast<int64_t>(base + value);
    }
  }
};

template <template <typename> class Distribution, typename T>
void distributionKernel(const KernelContext& context, const void* raw) {
  const auto& arguments = *static_cast<const RandomArguments*>(raw);
  forEachChunk(context, arguments.count, [&](int64_t first, int64_t count) {
    using Value = std::conditional_t<std::is_same_v<Distribution<T>, Integers<T>>, int64_t, Compute<T>>;
    alignas(64) Chunk<Value> values;
    Distribution<T>::draw(arguments, first, values);
    store(values, static_cast<T*>(arguments.output) + first, count);
  });
}

// `Bits` is the unsigned type of the element's size: all that is stored are the bits of 0 and of 1.
template <typename Bits, Bits kOne>
void bernoulliKernel(const KernelContext& context, const void* raw) {
  const auto& arguments = *static_cast<const RandomArguments*>(raw);
  const int32_t threshold = bernoulliThreshold(arguments.a);
  forEachChunk(context, arguments.count, [&](int64_t first, int64_t count) {
    Words words;
    drawWords(arguments, first, 0, words);
    Chunk<Bits> values;
    for (int64_t i = 0; i < kChunk; ++i) {
      values[i] = bernoulli(words[i], threshold) ? kOne : Bits{0};
    }
    store(values, static_cast<Bits*>(arguments.output) + first, count);
  });
}

template <typename Bits, Bits kOne>
void bernoulliEachKernel(const KernelContext& context, const void* raw) {
  const auto& arguments = *static_cast<const RandomArguments*>(raw);
  forEachChunk(context, arguments.count, [&](int64_t first, int64_t count) {
    Words words;
    drawWords(arguments, first, 0, words);
    Chunk<float> probabilities{};
    std::memcpy(probabilities, arguments.probabilities + first, static_cast<size_t>(count) * sizeof(float));
    int32_t invalid = 0;
    for (int64_t i = 0; i < kChunk; ++i) {
      invalid += probabilities[i] >= 0.0f && probabilities[i] <= 1.0f ? 0 : 1;
    }
    Chunk<Bits> values;
    for (int64_t i = 0; i < kChunk; ++i) {
      // Never true for 0, always for 1: a word rounded down to 24 bits is at most 1 - 2^-24.
      const float uniform = static_cast<float>(static_cast<int32_t>(words[i] >> 8)) * 0x1p-24f;
      values[i] = uniform < probabilities[i] ? kOne : Bits{0};
    }
    store(values, static_cast<Bits*>(arguments.output) + first, count);
    if (invalid != 0) {
      throw std::runtime_error("Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
    }
  });
}

template <typename T>
void dropoutKernelOf(const KernelContext& context, const void* raw) {
  using C = Compute<T>;
  const auto& arguments = *static_cast<const DropoutArguments*>(raw);
  const int32_t threshold = bernoulliThreshold(arguments.keep);
  const C scale = static_cast<C>(arguments.scale);
  forEachChunk(context, arguments.count, [&](int64_t first, int64_t count) {
    Words words;
    drawWords(arguments, first, 0, words);
    Chunk<uint8_t> kept;
    Chunk<C> factors;
    for (int64_t i = 0; i < kChunk; ++i) {
      kept[i] = bernoulli(words[i], threshold) ? 1 : 0;
    }
    for (int64_t i = 0; i < kChunk; ++i) {
      factors[i] = scale * static_cast<C>(bernoulli(words[i], threshold) ? 1 : 0);
    }
    std::memcpy(arguments.mask + first, kept, static_cast<size_t>(count));
    const T* __restrict input = static_cast<const T*>(arguments.input) + first;
    T* __restrict output = static_cast<T*>(arguments.output) + first;
    for (int64_t i = 0; i < count; ++i) {
      output[i] = static_cast<T>(static_cast<C>(input[i]) * factors[i]);
    }
  });
}

// --- The tables ---------------------------------------------------------------------------------------------

template <template <typename> class Distribution>
KernelFunction floatingKernel(c10::ScalarType output) {
  switch (output) {
    case c10::ScalarType::Float:
      return distributionKernel<Distribution, float>;
    case c10::ScalarType::Double:
      return distributionKernel<Distribution, double>;
    case c10::ScalarType::Half:
      return distributionKernel<Distribution, c10::Half>;
    case c10::ScalarType::BFloat16:
      return distributionKernel<Distribution, c10::BFloat16>;
    default:
      return nullptr;
  }
}

// Integers of one size share a kernel: conversion from 64 bits keeps the lowest ones, signed or not.
template <template <typename> class Distribution>
KernelFunction integralKernel(c10::ScalarType output) {
  switch (output) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
      return distributionKernel<Distribution, uint8_t>;
    case c10::ScalarType::Short:
    case c10::ScalarType::UInt16:
      return distributionKernel<Distribution, uint16_t>;
    case c10::ScalarType::Int:
    case c10::ScalarType::UInt32:
      return distributionKernel<Distribution, uint32_t>;
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt64:
      return distributionKernel<Distribution, uint64_t>;
    default:
      return nullptr;
  }
}

template <bool kEach, typename Bits, Bits kOne>
inline constexpr KernelFunction kBernoulli =
    kEach ? bernoulliEachKernel<Bits, kOne> : bernoulliKernel<Bits, kOne>;

template <bool kEach>
KernelFunction bernoulliKernelFor(c10::ScalarType output) {
  switch (output) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
      return kBernoulli<kEach, uint8_t, 1>;
    case c10::ScalarType::Short:
    case c10::ScalarType::UInt16:
      return kBernoulli<kEach, uint16_t, 1>;
    case c10::ScalarType::Int:
    case c10::ScalarType::UInt32:
      return kBernoulli<kEach, uint32_t, 1>;
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt64:
      return kBernoulli<kEach, uint64_t, 1>;
    case c10::ScalarType::Half:
      return kBernoulli<kEach, uint16_t, 0x3C00>;
    case c10::ScalarType::BFloat16:
      return kBernoulli<kEach, uint16_t, 0x3F80>;
    case c10::ScalarType::Float:
      return kBernoulli<kEach, uint32_t, 0x3F800000>;
    case c10::ScalarType::Double:
      return kBernoulli<kEach, uint64_t, 0x3FF0000000000000>;
    default:
      return nullptr;
  }
}

KernelFunction hotKernel(Distribution distribution, c10::ScalarType output) {
  switch (distribution) {
    case Distribution::Uniform:
      return floatingKernel<Uniform>(output);
    case Distribution::Normal:
      return floatingKernel<Normal>(output);
    case Distribution::Exponential:
      return floatingKernel<Exponential>(output);
    case Distribution::Integers: {
      KernelFunction integral = integralKernel<Integers>(output);
      return integral != nullptr ? integral : floatingKernel<Integers>(output);
    }
    case Distribution::Bernoulli:
      return bernoulliKernelFor<false>(output);
    case Distribution::BernoulliEach:
      return bernoulliKernelFor<true>(output);
    default:
      return nullptr;
  }
}

KernelFunction hotDropoutKernel(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return dropoutKernelOf<float>;
    case c10::ScalarType::Double:
      return dropoutKernelOf<double>;
    case c10::ScalarType::Half:
      return dropoutKernelOf<c10::Half>;
    case c10::ScalarType::BFloat16:
      return dropoutKernelOf<c10::BFloat16>;
    default:
      return nullptr;
  }
}

} // namespace
} // namespace simdev::native
