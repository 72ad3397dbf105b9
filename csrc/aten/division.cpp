// See division.h.
#include "aten/division.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/cpu/Loops.h>
#include <ATen/ops/result_type.h>

#include <type_traits>

namespace simdev {

bool runTruncatingDivision(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& dividend = arguments[0].toTensor();
  const at::Tensor& divisor = arguments[1].toTensor();
  const c10::ScalarType type = at::result_type(dividend, divisor);
  if (arguments[2].isNone() || arguments[2].toStringRef() != "trunc" ||
      (type != c10::ScalarType::Int &&
       type != c10::ScalarType::Long)) { // C++ divides the shorter ones as int
    return false;
  }
  auto iterator =
      at::TensorIterator::binary_op(const_cast<at::Tensor&>(arguments[3].toTensor()), dividend, divisor);
  AT_DISPATCH_INDEX_TYPES(iterator.common_dtype(), "div_trunc", [&] {
    at::native::cpu_kernel(iterator, [](index_t a, index_t b) -> index_t {
      TORCH_CHECK(b != 0, "ZeroDivisionError");
      return b == -1 ? static_cast<index_t>(-static_cast<std::make_unsigned_t<index_t>>(a)) : a / b;
    });
  });
  return true;
}

} // namespace simdev
