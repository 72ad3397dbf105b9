// Which operators need their indices checked, and the checks.  See index_checks.h.
#include "aten/index_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <iterator>

namespace simdev {

namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

// What indices are into: as many as a number says, the rows of a tensor, or the elements in its last dimensions.
template <size_t argument>
int64_t number(Arguments arguments) {
  return arguments[argument].toInt();
}

template <size_t argument>
int64_t rows(Arguments arguments) {
  return arguments[argument].toTensor().size(0);
}

template <size_t argument, size_t dims>
int64_t plane(Arguments arguments) {
  const c10::IntArrayRef sizes = arguments[argument].toTensor().sizes();
  return c10::multiply_integers(sizes.slice(sizes.size() - dims));
}

template <size_t argument, int64_t (*size)(Arguments), int64_t least = 0>
void inRange(Arguments arguments) {
  const at::Tensor& indices = arguments[argument].toTensor();
  if (indices.numel() == 0) {
    return;
  }
  const auto [smallest, largest] = at::aminmax(indices);
  const int64_t end = size(arguments);
  for (const int64_t index : {smallest.item().toLong(), largest.item().toLong()}) {
    TORCH_CHECK_INDEX(least <= index && index < end, "index ", index, " is out of bounds for size ", end);
  }
}

void labelsOfBackward(Arguments arguments) {
  const c10::IValue& lengths = arguments[4];
  const std::vector<int64_t> targetLengths =
      lengths.isTensor() ? readLengths(lengths.toTensor()) : lengths.toIntVector();
  checkLabels(arguments[2].toTensor(), targetLengths, arguments[1].toTensor().size(2));
}

constexpr int64_t kNone = -1; // in the indices of max pooling

constexpr IndexCheck kChecks[] = {
    {"aten::max_pool2d_with_indices_backward", inRange<7, plane<1, 2>, kNone>},
    {"aten::max_pool3d_with_indices_backward", inRange<7, plane<1, 3>, kNone>},
    {"aten::adaptive_max_pool2d_backward", inRange<2, plane<1, 2>>},
    {"aten::adaptive_max_pool3d_backward", inRange<2, plane<1, 3>>},
    {"aten::embedding_dense_backward", inRange<1, number<2>>},
    {"aten::_embedding_bag_dense_backward", inRange<1, number<5>>},
    {"aten::_embedding_bag_dense_backward", inRange<2, rows<0>>}, // the bag of each index
    {"aten::_embedding_bag_per_sample_weights_backward", inRange<2, rows<1>>},
    {"aten::_embedding_bag_per_sample_weights_backward", inRange<4, rows<0>>},
    {"aten::_ctc_loss_backward", labelsOfBackward},
};

} // namespace

c10::ArrayRef<IndexCheck> indexChecks(std::string_view op) {
  const auto isOfOp = [op](const IndexCheck& check) { return check.op == op; };
  const auto* const begin = std::find_if(std::begin(kChecks), std::end(kChecks), isOfOp);
  return {begin, std::find_if_not(begin, std::end(kChecks), isOfOp)};
}

void checkIndices(c10::ArrayRef<IndexCheck> checks, Arguments arguments) {
  for (const IndexCheck& check : checks) {
    check.run(arguments);
  }
}

std::vector<int64_t> readLengths(const at::Tensor& lengths) {
  const at::Tensor host = lengths.to(c10::kCPU, c10::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

void checkLabels(const at::Tensor& targets, c10::IntArrayRef targetLengths, int64_t classes) {
  const at::Tensor all = targets.to(c10::kLong);
  int64_t begin = 0;
  for (size_t i = 0; i < targetLengths.size(); ++i) {
    const at::Tensor target = all.dim() == 1 ? all.slice(0, begin, begin + targetLengths[i])
                                             : all[static_cast<int64_t>(i)].slice(0, 0, targetLengths[i]);
    const auto labels = target.accessor<int64_t, 1>();
    for (int64_t at = 0; at < labels.size(0); ++at) {
      TORCH_CHECK_INDEX(
          0 <= labels[at] && labels[at] < classes,
          "Expected targets to be in the range [0, ",
          classes,
          "), but got value ",
          labels[at]);
    }
    begin += targetLengths[i];
  }
}

} // namespace simdev
