// The hot random kernels for processors with AVX2.  See random_kernels.cpp for the choice.
#include "csrc/aten/native/random_kernels_impl.h"

namespace simdev::native {

KernelFunction randomKernelAvx2(Distribution distribution, c10::ScalarType output) {
  return hotKernel(distribution, output);
}

KernelFunction dropoutKernelAvx2(c10::ScalarType dtype) {
  return hotDropoutKernel(dtype);
}

} // namespace simdev::native
