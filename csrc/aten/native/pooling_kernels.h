// Max pooling over dense NCHW planes, written against the chip's launch call.  No PyTorch in here or in the .cpp.
#pragma once

#include "driver/driver.h"

#include <cstdint>

namespace simdev::native {

struct MaxPool2dArguments {
  const void* input; // planes x inputHeight x inputWidth
  void* output; // planes x outputHeight x outputWidth
  int64_t* indices; // of the maximum within the input's plane, as the output
  int64_t planes;
  int64_t inputHeight, inputWidth;
  int64_t outputHeight, outputWidth;
  int64_t kernelHeight, kernelWidth;
  int64_t strideHeight, strideWidth;
  int64_t paddingHeight, paddingWidth;
  int64_t dilationHeight, dilationWidth;
};

// gradInput[indices[i]] += gradOutput[i], plane by plane; gradInput is zeroed first.
struct MaxPool2dBackwardArguments {
  const void* gradOutput;
  const int64_t* indices;
  void* gradInput;
  int64_t planes;
  int64_t inputSize; // elements of a plane
  int64_t outputSize;
};

// Blocks share the planes.  `isDouble`: double instead of float.
KernelFunction maxPool2dKernel(bool isDouble);
KernelFunction maxPool2dBackwardKernel(bool isDouble);

} // namespace simdev::native
