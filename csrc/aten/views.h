// Resizing from C++: what out= operators use.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace simdev {

// Gives the tensor these sizes and strides, growing its storage where they need more.
void resizeStrided(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides);

} // namespace simdev
