// Allocation of simdev tensors from C++: what operators use for their outputs.
// The dispatcher's own factory operators (empty.memory_format, ...) are in factories.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>

#include <optional>

namespace simdev {

// All allocate uninitialised memory on `device`, on that device's current stream.
at::Tensor
emptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::Device device);
at::Tensor empty(
    c10::IntArrayRef sizes,
    c10::ScalarType dtype,
    c10::Device device,
    c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
// Same sizes and, where `self` is non-overlapping and dense, the same strides.
at::Tensor emptyLike(const at::Tensor& self, std::optional<c10::ScalarType> dtype = std::nullopt);

// Whether the memory that the user's empty() and resize_() return must have known contents: with deterministic algorithms.
bool fillsNewMemory();

} // namespace simdev
