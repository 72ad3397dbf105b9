// Nested tensors of the strided layout: registration of the kernels that ATen has for them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch {
class Library;
}

namespace simdev {

// Serves an operator's nested tensors by the kernel that ATen has for the CPU's, unless there is one of ours.  `library` is for the
// dispatch key NestedTensorPrivateUse1.
void registerNestedKernel(torch::Library& library, const c10::OperatorHandle& op);

} // namespace simdev
