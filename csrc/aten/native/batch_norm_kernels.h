// Batch normalisation in training over dense NC* floats, written against the chip's launch call.  No PyTorch in here or
// in the .cpp.
#pragma once

#include "driver/driver.h"

#include <cstdint>

namespace simdev::native {

struct BatchNormArguments {
  const float* input; // batch x channels x spatial
  const float* weight; // channels; nullptr for ones
  const float* bias; // channels; nullptr for zeros
  float* runningMean; // channels, updated; nullptr for none
  float* runningVar;
  float* output;
  float* saveMean; // channels
  float* saveInvstd;
  int64_t batch;
  int64_t channels;
  int64_t spatial;
  double momentum;
  double eps;
};

struct BatchNormBackwardArguments {
  const float* gradOutput; // batch x channels x spatial
  const float* input;
  const float* weight; // channels; nullptr for ones
  const float* saveMean; // channels
  const float* saveInvstd;
  float* gradInput; // nullptr when not asked for, as the two below
  float* gradWeight; // channels
  float* gradBias;
  int64_t batch;
  int64_t channels;
  int64_t spatial;
};

// Blocks share the channels.
void batchNormKernel(const KernelContext& context, const void* arguments);
void batchNormBackwardKernel(const KernelContext& context, const void* arguments);

} // namespace simdev::native
