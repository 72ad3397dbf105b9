// Truncating division of integers.  ATen's kernel divides with the processor's instruction, which traps where the quotient
// of the least integer and -1 has no place in the type: that ends the process.  CUDA's quotient wraps around.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace simdev {

// Runs div.out_mode on backing tensors, or returns false where nothing can trap, to leave it to ATen's kernel.
bool runTruncatingDivision(c10::ArrayRef<c10::IValue> arguments);

} // namespace simdev
