// The hot random kernels for processors with AVX512.  See random_kernels.cpp for the choice.
#include "csrc/aten/native/random_kernels_impl.h"

namespace simdev::native {

KernelFunction randomKernelAvx512(Distribution distribution, c10::ScalarType output) {
  return hotKernel(distribution, output);
}

KernelFunction dropoutKernelAvx512(c10::ScalarType dtype) {
  return hotDropoutKernel(dtype);
}

} // namespace simdev::native
