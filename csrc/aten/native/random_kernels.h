// Random numbers on the device: the native kernels and their arguments.
//
// Element i of a call always comes from lane i % 4 of the Philox block i / 4 after the call's first, and one that needs more than 32 bits
// takes the next ones from the same place of the next subsequence.  So values depend on nothing but the arguments: not
// on the grid, the instruction set or the number of threads; and a call over n elements uses up n numbers.
#pragma once

#include "csrc/driver/driver.h"
#include "csrc/runtime/philox_state.h"

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace simdev::native {

enum class Distribution : uint8_t {
  Uniform, // [a, b)
  Normal, // mean a, standard deviation b
  Exponential, // rate a
  Integers, // `base` + [0, `range`), or all 64 bits when `range` is 0
  Bernoulli, // 1 with probability a
  BernoulliEach, // 1 with probability probabilities[i], of which a throws unless it is within [0, 1]
  LogNormal, // exp of Normal
  Cauchy, // median a, half width b
  Geometric, // number of trials up to the first success, each of probability a
};

struct RandomArguments {
  void* output; // contiguous
  const float* probabilities; // BernoulliEach
  int64_t count;
  PhiloxState philox;
  double a;
  double b;
  int64_t base;
  uint64_t range;
};

// output[i] = mask[i] ? input[i] * scale : 0 * input[i], mask[i] = 1 with probability `keep`.
struct DropoutArguments {
  const void* input;
  void* output;
  bool* mask;
  int64_t count;
  PhiloxState philox;
  double keep;
  double scale;
};

// nullptr when the distribution has no values of that type.
KernelFunction randomKernel(Distribution distribution, c10::ScalarType output);
KernelFunction dropoutKernel(c10::ScalarType dtype); // nullptr unless a real floating-point type

} // namespace simdev::native
