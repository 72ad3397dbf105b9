// Indices and sizes that ATen's kernels for the CPU use unchecked: a wrong one would write into other tensors, or end the
// process.
// The checks run on the device, over the kernel's arguments.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace simdev {

struct IndexCheck {
  std::string_view op; // without overload
  void (*run)(c10::ArrayRef<c10::IValue> arguments);
};

// What there is to check of an operator; mostly nothing.
c10::ArrayRef<IndexCheck> indexChecks(std::string_view op);
void checkIndices(c10::ArrayRef<IndexCheck> checks, c10::ArrayRef<c10::IValue> arguments);

// That the indices of a sparse tensor, of whichever layout, are within its sizes.
void checkSparseIndices(const at::Tensor& tensor);

// The lengths of a CTC loss that are given as a tensor; on whichever device, so that of a device's the host waits for them.
std::vector<int64_t> readLengths(const at::Tensor& lengths);

// That a CTC loss's targets are labels below `classes`.  Of a row in a batch only as many count as the target is long; what
// pads it may be any number.
void checkLabels(const at::Tensor& targets, c10::IntArrayRef targetLengths, int64_t classes);

} // namespace simdev
