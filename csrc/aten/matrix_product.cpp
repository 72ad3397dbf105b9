// See matrix_product.h.  Each condition here stands for a case in which MKL was measured to be faster, or oneDNN to copy.
#include "aten/matrix_product.h"

#include "compat.h"

#include <ATen/Context.h>

namespace simdev {

namespace {

// For another shape than before oneDNN generates code, which takes it 0.6 to 1 ms.
constexpr int64_t kLeastMultiplications = int64_t{64} << 20;
// Of one matrix by another: how many products each element of the result is a sum of.
constexpr int64_t kLeastSum = 128;
// Of many small ones, each with at least so many rows and columns.
constexpr int64_t kLeastSizeInBatch = 32;

enum class Order { Rows, Columns, Other };

Order orderOf(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(-2);
  const int64_t columns = matrix.size(-1);
  if (matrix.dim() == 3 && matrix.stride(0) < rows * columns) {
    return Order::Other;
  }
  return matrix.stride(-1) == 1 && matrix.stride(-2) >= columns ? Order::Rows
         : matrix.stride(-2) == 1 && matrix.stride(-1) >= rows  ? Order::Columns
                                                                : Order::Other;
}

bool isPlainFloat(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == c10::kStrided && tensor.scalar_type() == at::kFloat &&
         !tensor.is_neg();
}

bool isFaster(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  if (!isPlainFloat(a) || !isPlainFloat(b) || !isPlainFloat(out) || !out.is_contiguous() ||
      (a.dim() != 2 && a.dim() != 3) || !at::globalContext().hasMKLDNN() ||
      !at::globalContext().userEnabledMkldnn()) {
    return false;
  }
  const int64_t sum = a.size(-1);
  const int64_t least = a.dim() == 2 ? 1 : kLeastSizeInBatch;
  if (out.numel() * sum < kLeastMultiplications || sum < (a.dim() == 2 ? kLeastSum : kLeastSizeInBatch) ||
      out.size(-2) < least || out.size(-1) < least) {
    return false;
  }
  const Order first = orderOf(a);
  const Order second = orderOf(b);
  return first != Order::Other && second != Order::Other && (first == Order::Rows || second == Order::Rows);
}

} // namespace

bool runMatrixProduct(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& out = arguments.back().toTensor();
  const bool adds = arguments.size() == 6; // self, mat1, mat2, beta, alpha, out; otherwise self, mat2, out
  const at::Tensor& a = arguments[adds ? 1 : 0].toTensor();
  const at::Tensor& b = arguments[adds ? 2 : 1].toTensor();
  if (!isFaster(a, b, out)) {
    return false;
  }
  if (!adds) {
    at::native::mkldnn_matmul(a, b, out, /*beta=*/0, /*alpha=*/1);
    return true;
  }
  const at::Tensor& self = arguments[0].toTensor();
  const float beta = arguments[3].toScalar().toFloat();
  const float alpha = arguments[4].toScalar().toFloat();
  if (self.is_alias_of(out)) {
    return false; // the product would overwrite what is added to it
  }
  at::native::mkldnn_matmul(a, b, out, /*beta=*/0, alpha);
  if (beta != 0) { // afterwards: to begin with it costs as much, and oneDNN more
    out.add_(self, beta);
  }
  return true;
}

} // namespace simdev
