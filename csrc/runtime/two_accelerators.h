// Autograd on CUDA tensors beside ours; see two_accelerators.cpp.
#pragma once

namespace simdev {

// How many of PyTorch's calls of at::accelerator::getAccelerator() can be redirected; redirects them if asked to.
int findAcceleratorImports(bool redirect);

// Whether the calling thread starts a backward pass from CUDA tensors.  Returns what it was.
bool setBackwardAccelerator(bool isCuda);

} // namespace simdev
