// Autograd on CUDA tensors beside ours; see two_accelerators.cpp.
#pragma once

namespace simdev {

// How many of PyTorch's calls of at::accelerator::getAccelerator() can be redirected; redirects them if asked to.
int findAcceleratorImports(bool redirect);

} // namespace simdev
