// nn.LSTM in float32 as a launch per layer and direction, of oneDNN's fused layer, which is what the CPU does.
//
// Everything else (projections, packed sequences, other types, autocast, oneDNN switched off by torch.backends.mkldnn) is
// ATen's loop over cells (rnn.cpp).  As on the CPU, the fused layer has no second derivative.
#include "csrc/aten/launched.h"
#include "csrc/driver/driver.h"
#include "csrc/runtime/device.h"

#include <ATen/Context.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/lstm_ops.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace simdev {

namespace {

constexpr int64_t kLstm = 2; // oneDNN's number for this kind of recurrent layer

using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Whether this is a step of torch.compile that may be differentiated.  Inductor takes the workspace that the fused layer
// keeps for its backward pass for a single element.
bool isTracedTraining(const at::Tensor& input, at::TensorList parameters, bool train) {
  const auto needsGradient = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  const bool differentiated =
      at::GradMode::is_enabled() &&
      (needsGradient(input) || std::any_of(parameters.begin(), parameters.end(), needsGradient));
  return (train || differentiated) && at::isTensorSubclassLike(input);
}

// What is not as it should be is left to the composition too, whose checks say so.  Sizes may be symbols: of an exported
// layer, say, whose batch is any number.
bool isFused(
    const at::Tensor& input,
    at::TensorList hx,
    at::TensorList parameters,
    bool hasBiases,
    int64_t layers,
    bool train,
    bool batchFirst,
    bool bidirectional) {
  const auto isPlain = [](const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
    return tensor.device().type() == kDeviceType && tensor.scalar_type() == at::kFloat &&
           tensor.sym_sizes() == sizes;
  };
  const int64_t directions = bidirectional ? 2 : 1;
  const size_t perDirection = hasBiases ? 4 : 2;
  if (isTracedTraining(input, parameters, train) || !at::globalContext().userEnabledMkldnn() ||
      at::autocast::is_autocast_enabled(kDeviceType) || !driver().hasNativeKernels() || input.dim() != 3 ||
      TORCH_GUARD_OR_FALSE(input.sym_numel().sym_eq(0)) || !isPlain(input, input.sym_sizes()) ||
      hx.size() != 2 || hx[0].dim() != 3 ||
      parameters.size() != static_cast<size_t>(layers * directions) * perDirection) {
    return false;
  }
  const c10::SymInt size = hx[0].sym_size(2);
  const c10::SymInt gates = 4 * size;
  const c10::SymInt states[] = {layers * directions, input.sym_size(batchFirst ? 0 : 1), size};
  if (!isPlain(hx[0], states) || !isPlain(hx[1], states)) {
    return false;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool first = i < static_cast<size_t>(directions) * perDirection;
    const c10::SymInt columns[] = {first ? input.sym_size(2) : directions * size, size};
    const size_t kind = i % perDirection; // of the input, of the state, and their biases
    const c10::SymInt sizes[] = {gates, kind < 2 ? columns[kind] : 0};
    if (!isPlain(parameters[i], c10::SymIntArrayRef(sizes, kind < 2 ? 2 : 1))) {
      return false;
    }
  }
  return true;
}

Result lstm(
    const at::Tensor& input,
    at::TensorList hx,
    at::TensorList parameters,
    bool hasBiases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batchFirst) {
  if (!isFused(input, hx, parameters, hasBiases, layers, train, batchFirst, bidirectional)) {
    return at::_ops::lstm_input::redispatch(
        kCompositeKeys, input, hx, parameters, hasBiases, layers, dropout, train, bidirectional, batchFirst);
  }
  const int64_t directions = bidirectional ? 2 : 1;
  const size_t perDirection = hasBiases ? 4 : 2;
  const int64_t size = hx[0].sym_size(-1).guard_int(__FILE__, __LINE__);
  at::Tensor sequence = (batchFirst ? input.transpose(0, 1) : input).contiguous(); // (time, batch, features)
  std::vector<at::Tensor> hy, cy;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const at::Tensor* const own = &parameters[static_cast<size_t>(index) * perDirection];
      const at::Tensor noBias = hasBiases ? at::Tensor() : at::zeros({own[0].size(0)}, own[0].options());
      auto [output, lastHidden, lastCell, workspace] = at::mkldnn_rnn_layer(
          sequence,
          own[0],
          own[1],
          hasBiases ? own[2] : noBias,
          hasBiases ? own[3] : noBias,
          hx[0].select(0, index).contiguous(),
          hx[1].select(0, index).contiguous(),
          /*reverse=*/direction > 0,
          /*batch_sizes=*/{},
          kLstm,
          size,
          layers,
          hasBiases,
          bidirectional,
          /*batch_first=*/false, // transposed above
          train);
      outputs.push_back(std::move(output));
      hy.push_back(std::move(lastHidden));
      cy.push_back(std::move(lastCell));
    }
    sequence = bidirectional ? at::cat(outputs, -1) : outputs[0];
    if (dropout != 0 && train && layer + 1 < layers) {
      sequence = at::dropout(sequence, dropout, /*train=*/true);
    }
  }
  return {batchFirst ? sequence.transpose(0, 1) : sequence, at::stack(hy), at::stack(cy)};
}

} // namespace

// Both: whether or not autograd records, the layers are what it differentiates.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("lstm.input", TORCH_FN(lstm));
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm.input", TORCH_FN(lstm));
}

} // namespace simdev
