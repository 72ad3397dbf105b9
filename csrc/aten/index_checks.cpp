// Which operators need their indices checked, and the checks.  See index_checks.h.
#include "aten/index_checks.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <iterator>

namespace simdev {

namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

// What indices are into: as many as a number says, the rows of a tensor, or the elements in its last dimensions.  An offset
// may also be the end.
template <size_t argument>
int64_t number(Arguments arguments) {
  return arguments[argument].toInt();
}

template <size_t argument>
int64_t rows(Arguments arguments) {
  return arguments[argument].toTensor().size(0);
}

template <size_t argument>
int64_t rowsAndEnd(Arguments arguments) {
  return rows<argument>(arguments) + 1;
}

template <size_t argument, size_t dims>
int64_t plane(Arguments arguments) {
  const c10::IntArrayRef sizes = arguments[argument].toTensor().sizes();
  return c10::multiply_integers(sizes.slice(sizes.size() - dims));
}

void checkRange(int64_t index, int64_t least, int64_t end) {
  TORCH_CHECK_INDEX(least <= index && index < end, "index ", index, " is out of bounds for size ", end);
}

void checkRange(const at::Tensor& indices, int64_t least, int64_t end) {
  if (indices.numel() == 0) {
    return;
  }
  const auto [smallest, largest] = at::aminmax(indices);
  checkRange(smallest.item().toLong(), least, end);
  checkRange(largest.item().toLong(), least, end);
}

template <size_t argument, int64_t (*size)(Arguments), int64_t least = 0>
void inRange(Arguments arguments) {
  checkRange(arguments[argument].toTensor(), least, size(arguments));
}

// That `offsets`, in their last dimension, tell where neighbouring pieces of `size` elements begin and the last one ends.
void checkOffsets(const at::Tensor& offsets, int64_t size) {
  checkRange(offsets, 0, size + 1);
  TORCH_CHECK_INDEX(offsets.diff(1, -1).ge(0).all().item<bool>(), "offsets must not decrease");
}

template <size_t data, size_t lengths, size_t offsets, size_t axis>
void segments(Arguments arguments) {
  const int64_t size = arguments[data].toTensor().size(arguments[axis].toInt());
  const auto isGiven = [](const c10::IValue& argument) {
    return argument.isTensor() && argument.toTensor().defined();
  };
  if (isGiven(arguments[lengths])) {
    checkRange(arguments[lengths].toTensor(), 0, size + 1);
    checkOffsets(arguments[lengths].toTensor().cumsum(-1), size);
  } else if (isGiven(arguments[offsets])) {
    checkOffsets(arguments[offsets].toTensor(), size);
  }
}

// The offsets of a compressed sparse layout's rows (or columns) into its elements.
void checkCompressed(const at::Tensor& offsets, int64_t elements) {
  checkOffsets(offsets, elements);
  if (offsets.numel() > 0) {
    TORCH_CHECK_INDEX(
        offsets.select(-1, 0).eq(0).all().item<bool>() &&
            offsets.select(-1, -1).eq(elements).all().item<bool>(),
        "the compressed indices of a sparse tensor must begin with 0 and end with the number of its "
        "elements, ",
        elements);
  }
}

void compressedRows(Arguments arguments) {
  checkCompressed(arguments[0].toTensor(), arguments[1].toTensor().size(-1));
}

// The classes of nll_loss's backward, among which any number may be the one to ignore.
void classes(Arguments arguments) {
  const at::Tensor& input = arguments[1].toTensor();
  const at::Tensor& target = arguments[2].toTensor();
  checkRange(target.masked_fill(target.eq(arguments[5].toInt()), 0), 0, input.size(input.dim() == 1 ? 0 : 1));
}

std::vector<int64_t> lengths(const c10::IValue& argument) {
  return argument.isTensor() ? readLengths(argument.toTensor()) : argument.toIntVector();
}

void alignments(Arguments arguments) {
  const at::Tensor& logProbabilities = arguments[1].toTensor();
  const at::Tensor& targets = arguments[2].toTensor();
  const at::Tensor& logAlpha = arguments[6].toTensor(); // of each step, the labels and the blanks around them
  const std::vector<int64_t> targetLengths = lengths(arguments[4]);
  for (const int64_t length : lengths(arguments[3])) {
    checkRange(length, 0, std::min(logProbabilities.size(0), logAlpha.size(1)) + 1);
  }
  int64_t total = 0;
  for (const int64_t length : targetLengths) {
    checkRange(length, 0, std::min(targets.size(-1), (logAlpha.size(2) - 1) / 2) + 1);
    total += length;
  }
  if (targets.dim() == 1) {
    checkRange(total, 0, targets.size(0) + 1);
  }
  checkLabels(targets, targetLengths, logProbabilities.size(2));
}

// The first `dimension` rows of a Sobol sequence's state, of which each has 30 direction numbers.
constexpr int64_t kSobolBits = 30;
constexpr int64_t kSobolMaxDimension = 21201;

void checkSobolState(const at::Tensor& state, int64_t dimension) {
  TORCH_CHECK(
      state.dim() == 2 && state.size(1) == kSobolBits && 0 <= dimension && dimension <= state.size(0) &&
          dimension <= kSobolMaxDimension,
      "expected the state of a Sobol sequence of ",
      dimension,
      " dimensions, at most ",
      kSobolMaxDimension,
      ", but got a tensor of shape ",
      state.sizes());
}

void sobolNumbers(Arguments arguments) {
  const int64_t count = arguments[1].toInt();
  const int64_t dimension = arguments[3].toInt();
  const int64_t generated = arguments[4].toInt();
  checkSobolState(arguments[2].toTensor(), dimension);
  TORCH_CHECK(
      arguments[0].toTensor().dim() == 1 && dimension <= arguments[0].toTensor().size(0),
      "expected the last point of a Sobol sequence of ",
      dimension,
      " dimensions, but got a tensor of shape ",
      arguments[0].toTensor().sizes());
  constexpr int64_t kPoints = int64_t{1} << kSobolBits;
  TORCH_CHECK(
      0 <= count && 0 <= generated && generated < kPoints && count < kPoints - generated,
      "a Sobol sequence has fewer than 2^",
      kSobolBits,
      " points, but ",
      count,
      " more were asked for after ",
      generated);
}

void sobolState(Arguments arguments) {
  checkSobolState(arguments[0].toTensor(), arguments[1].toInt());
}

void sobolScrambling(Arguments arguments) {
  const int64_t dimension = arguments[2].toInt();
  const at::Tensor& matrices = arguments[1].toTensor();
  checkSobolState(arguments[0].toTensor(), dimension);
  TORCH_CHECK(
      matrices.scalar_type() == c10::kLong && matrices.dim() == 3 && matrices.size(0) >= dimension &&
          matrices.size(1) == kSobolBits && matrices.size(2) == kSobolBits,
      "expected ",
      dimension,
      " int64 matrices of ",
      kSobolBits,
      " rows and columns to scramble a Sobol sequence, but got ",
      matrices.scalar_type(),
      " of shape ",
      matrices.sizes());
}

// The kernels for packed weights go through those and their scales as if they had no gaps.
void checkPackedWeights(const at::Tensor& weights, const at::Tensor& scales) {
  TORCH_CHECK(weights.dim() == 2, "expected weights of 2 dimensions, but got ", weights.dim());
  TORCH_CHECK(scales.is_contiguous(), "expected the scales of weights to be contiguous");
}

void scalesOfRows(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  constexpr int64_t kElements = 16; // of bfloat16, which are loaded together and from where they are aligned
  TORCH_CHECK(
      input.scalar_type() != c10::kBFloat16 ||
          (input.size(-1) % kElements == 0 &&
           reinterpret_cast<uintptr_t>(input.const_data_ptr()) % (kElements * sizeof(c10::BFloat16)) == 0),
      "expected rows of bfloat16 to be aligned and a multiple of ",
      kElements,
      " elements");
  checkPackedWeights(arguments[1].toTensor(), arguments[2].toTensor());
}

void scalesOfGroups(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const int64_t groupSize = arguments[2].toInt();
  const at::Tensor& scales = arguments[3].toTensor();
  checkPackedWeights(arguments[1].toTensor(), scales);
  if (input.dim() == 2 && groupSize > 0 && scales.dim() == 3) { // which the kernel checks
    TORCH_CHECK(
        scales.size(0) >= (input.size(1) + groupSize - 1) / groupSize,
        "expected scales and zero points for groups of ",
        groupSize,
        " among ",
        input.size(1),
        " weights, but got ",
        scales.size(0));
  }
}

// The norms of weight_norm: one for each index of the weights' dimension.
template <size_t weights, size_t norms, size_t axis>
void normsOfWeights(Arguments arguments) {
  const int64_t expected = arguments[weights].toTensor().size(arguments[axis].toInt());
  const int64_t actual = arguments[norms].toTensor().numel();
  TORCH_CHECK(actual == expected, "expected ", expected, " norms of weights, but got ", actual);
}

// The gradients and the states of a fused optimizer's step, in `lists` lists of which each may be empty; the parameters are
// the first.
template <size_t lists>
void optimizerStates(Arguments arguments) {
  const auto parameters = arguments[0].toListRef();
  for (const c10::IValue& argument : arguments.slice(1, lists - 1)) {
    const auto states = argument.toListRef();
    for (size_t i = 0; i < states.size(); ++i) {
      TORCH_CHECK(
          states.size() == parameters.size() &&
              states[i].toTensor().sizes() == parameters[i].toTensor().sizes(),
          "expected gradients and states of the sizes of an optimizer's parameters");
    }
  }
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
    {"aten::_embedding_bag", inRange<2, rowsAndEnd<1>>}, // where each bag begins
    {"aten::_embedding_bag_forward_only", inRange<2, rowsAndEnd<1>>},
    {"aten::_ctc_loss_backward", alignments},
    {"aten::nll_loss_backward", classes},
    {"aten::nll_loss2d_backward", classes},
    {"aten::segment_reduce", segments<0, 2, 4, 5>},
    {"aten::_segment_reduce_backward", segments<2, 4, 5, 6>},
    {"aten::_convert_indices_from_csr_to_coo", compressedRows},
    {"aten::_convert_indices_from_coo_to_csr", inRange<0, number<1>>},
    {"aten::_fused_adagrad_", optimizerStates<3>},
    {"aten::_fused_adam_", optimizerStates<5>},
    {"aten::_fused_adamw_", optimizerStates<5>},
    {"aten::_fused_sgd_", optimizerStates<3>},
    {"aten::_sobol_engine_draw", sobolNumbers},
    {"aten::_sobol_engine_ff_", sobolNumbers},
    {"aten::_sobol_engine_initialize_state_", sobolState},
    {"aten::_sobol_engine_scramble_", sobolScrambling},
    {"aten::_weight_int4pack_mm_for_cpu", scalesOfGroups},
    {"aten::_weight_int8pack_mm", scalesOfRows},
    {"aten::_weight_norm_interface", normsOfWeights<0, 1, 2>},
    {"aten::_weight_norm_interface_backward", normsOfWeights<1, 2, 4>},
    {"aten::_weight_norm_interface_backward", normsOfWeights<1, 3, 4>},
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

void checkSparseIndices(const at::Tensor& tensor) {
  if (tensor.layout() == c10::Layout::Sparse) {
    const auto* impl = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    for (int64_t dim = 0; dim < impl->sparse_dim(); ++dim) {
      checkRange(impl->indices()[dim], 0, tensor.size(dim));
    }
    return;
  }
  const auto* impl = static_cast<const at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
  const at::Tensor& plain = impl->plain_indices();
  checkCompressed(impl->compressed_indices(), plain.size(-1));
  const auto batchDims = static_cast<size_t>(plain.dim() - 1);
  const bool byRow = at::sparse_csr::isCompressedRow(tensor.layout());
  const bool isBlocked =
      tensor.layout() == c10::Layout::SparseBsr || tensor.layout() == c10::Layout::SparseBsc;
  const int64_t blockSize =
      isBlocked ? impl->values().size(static_cast<int64_t>(batchDims + (byRow ? 2 : 1))) : 1;
  checkRange(plain, 0, tensor.sizes()[batchDims + (byRow ? 1 : 0)] / blockSize);
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
