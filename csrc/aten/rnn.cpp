// One step of an LSTM and of a GRU.
//
// On this device nn.LSTM and nn.GRU, in all their variants, are loops over these operators and matrix products.  A
// cell is one launch: a short chain of ATen's operators on memory that the host has allocated.
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/launch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <torch/library.h>

#include <tuple>

namespace simdev {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

void checkCell(
    const char* name,
    const at::Tensor& inputGates,
    const at::Tensor& hiddenGates,
    const at::Tensor& hidden,
    const OptionalTensor& inputBias,
    const OptionalTensor& hiddenBias,
    int64_t gates) {
  checkSameDevice(inputGates.device(), {hiddenGates, hidden, inputBias, hiddenBias});
  TORCH_CHECK(isDefined(inputBias) == isDefined(hiddenBias), name, ": both biases must be given, or neither");
  TORCH_CHECK(
      inputGates.dim() == 2 && hiddenGates.sizes() == inputGates.sizes() && hidden.dim() == 2 &&
          hidden.size(0) == inputGates.size(0) && inputGates.size(1) == gates * hidden.size(1),
      name,
      ": expected gates of shape (batch, ",
      gates,
      " * hidden size) and a state of shape (batch, hidden size), got ",
      inputGates.sizes(),
      ", ",
      hiddenGates.sizes(),
      " and ",
      hidden.sizes());
}

at::Tensor emptyContiguous(const at::Tensor& like) {
  return empty(like.sizes(), like.scalar_type(), like.device());
}

// Part `index` of the equal parts of a (batch, parts * size) tensor.
at::Tensor part(const at::Tensor& tensor, int64_t index, int64_t size, int64_t count = 1) {
  return tensor.narrow(1, index * size, count * size);
}

// The workspace keeps the activated gates: input, forget, cell, output.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstmCell(
    const at::Tensor& inputGates,
    const at::Tensor& hiddenGates,
    const at::Tensor& cx,
    const OptionalTensor& inputBias,
    const OptionalTensor& hiddenBias) {
  checkCell("_thnn_fused_lstm_cell", inputGates, hiddenGates, cx, inputBias, hiddenBias, 4);
  at::Tensor hy = emptyContiguous(cx);
  at::Tensor cy = emptyContiguous(cx);
  at::Tensor workspace = emptyContiguous(inputGates);
  launch(
      cx.device(),
      "aten::_thnn_fused_lstm_cell",
      [inputGates = backing(inputGates),
       hiddenGates = backing(hiddenGates),
       cx = backing(cx),
       inputBias = backing(inputBias),
       hiddenBias = backing(hiddenBias),
       hy = backing(hy),
       cy = backing(cy),
       gates = backing(workspace)]() mutable {
        at::add_out(gates, inputGates, hiddenGates);
        if (isDefined(inputBias)) {
          gates.add_(*inputBias).add_(*hiddenBias);
        }
        const int64_t size = cx.size(1);
        part(gates, 0, size, 2).sigmoid_();
        part(gates, 2, size).tanh_();
        part(gates, 3, size).sigmoid_();
        at::mul_out(cy, part(gates, 1, size), cx);
        cy.addcmul_(part(gates, 0, size), part(gates, 2, size));
        at::tanh_out(hy, cy).mul_(part(gates, 3, size));
      },
      isLarge(workspace));
  return {std::move(hy), std::move(cy), std::move(workspace)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstmCellBackward(
    const OptionalTensor& gradHy,
    const OptionalTensor& gradCy,
    const at::Tensor& cx,
    const at::Tensor& cy,
    const at::Tensor& workspace,
    bool hasBias) {
  if (!isDefined(gradHy) && !isDefined(gradCy)) {
    return {};
  }
  const c10::Device device = workspace.device();
  checkSameDevice(device, {gradHy, gradCy, cx, cy});
  at::Tensor gradGates = emptyContiguous(workspace);
  at::Tensor gradCx = emptyContiguous(cx);
  at::Tensor gradBias = hasBias ? empty({workspace.size(1)}, workspace.scalar_type(), device) : at::Tensor();
  launch(
      device,
      "aten::_thnn_fused_lstm_cell_backward",
      [gradHy = backing(gradHy),
       gradCy = backing(gradCy),
       cx = backing(cx),
       cy = backing(cy),
       gates = backing(workspace),
       gradGates = backing(gradGates),
       gradCx = backing(gradCx),
       gradBias = backing(gradBias)]() mutable {
        const int64_t size = cx.size(1);
        const at::Tensor input = part(gates, 0, size);
        const at::Tensor forget = part(gates, 1, size);
        const at::Tensor cell = part(gates, 2, size);
        const at::Tensor output = part(gates, 3, size);
        // The gradient of cy: what comes from later steps and what comes through hy = output * tanh(cy).
        at::Tensor grad = isDefined(gradCy) ? *gradCy : at::Tensor();
        at::Tensor gradOutput = part(gradGates, 3, size);
        if (isDefined(gradHy)) {
          const at::Tensor activated = cy.tanh();
          const at::Tensor through = at::tanh_backward(*gradHy * output, activated);
          grad = grad.defined() ? grad + through : through;
          at::sigmoid_backward_out(gradOutput, *gradHy * activated, output);
        } else {
          gradOutput.zero_();
        }
        at::Tensor gradInput = part(gradGates, 0, size);
        at::Tensor gradForget = part(gradGates, 1, size);
        at::Tensor gradCell = part(gradGates, 2, size);
        at::sigmoid_backward_out(gradInput, grad * cell, input);
        at::sigmoid_backward_out(gradForget, grad * cx, forget);
        at::tanh_backward_out(gradCell, grad * input, cell);
        at::mul_out(gradCx, grad, forget);
        if (gradBias.defined()) {
          at::sum_out(gradBias, gradGates, at::IntArrayRef{0});
        }
      },
      isLarge(workspace));
  return {std::move(gradGates), std::move(gradCx), std::move(gradBias)};
}

// The workspace keeps the activated gates (reset, update, new), then hx, then the hidden part of the new gate, which the
// reset gate multiplies.
std::tuple<at::Tensor, at::Tensor> gruCell(
    const at::Tensor& inputGates,
    const at::Tensor& hiddenGates,
    const at::Tensor& hx,
    const OptionalTensor& inputBias,
    const OptionalTensor& hiddenBias) {
  checkCell("_thnn_fused_gru_cell", inputGates, hiddenGates, hx, inputBias, hiddenBias, 3);
  at::Tensor hy = emptyContiguous(hx);
  at::Tensor workspace = empty({hx.size(0), 5 * hx.size(1)}, hx.scalar_type(), hx.device());
  launch(
      hx.device(),
      "aten::_thnn_fused_gru_cell",
      [inputGates = backing(inputGates),
       hiddenGates = backing(hiddenGates),
       hx = backing(hx),
       inputBias = backing(inputBias),
       hiddenBias = backing(hiddenBias),
       hy = backing(hy),
       workspace = backing(workspace)]() mutable {
        const int64_t size = hx.size(1);
        const bool biased = isDefined(inputBias);
        at::Tensor resetAndUpdate = part(workspace, 0, size, 2);
        at::Tensor candidate = part(workspace, 2, size);
        at::Tensor hiddenCandidate = part(workspace, 4, size);
        at::add_out(resetAndUpdate, part(inputGates, 0, size, 2), part(hiddenGates, 0, size, 2));
        part(workspace, 3, size).copy_(hx);
        hiddenCandidate.copy_(part(hiddenGates, 2, size));
        if (biased) {
          resetAndUpdate.add_(inputBias->narrow(0, 0, 2 * size)).add_(hiddenBias->narrow(0, 0, 2 * size));
          hiddenCandidate.add_(hiddenBias->narrow(0, 2 * size, size));
        }
        resetAndUpdate.sigmoid_();
        at::addcmul_out(candidate, part(inputGates, 2, size), part(workspace, 0, size), hiddenCandidate);
        if (biased) {
          candidate.add_(inputBias->narrow(0, 2 * size, size));
        }
        candidate.tanh_();
        at::sub_out(hy, hx, candidate).mul_(part(workspace, 1, size)).add_(candidate);
      },
      isLarge(workspace));
  return {std::move(hy), std::move(workspace)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
gruCellBackward(const at::Tensor& gradHy, const at::Tensor& workspace, bool hasBias) {
  const c10::Device device = workspace.device();
  const c10::ScalarType dtype = workspace.scalar_type();
  checkSameDevice(device, {gradHy});
  const int64_t batch = workspace.size(0);
  const int64_t size = workspace.size(1) / 5;
  at::Tensor gradInputGates = empty({batch, 3 * size}, dtype, device);
  at::Tensor gradHiddenGates = empty({batch, 3 * size}, dtype, device);
  at::Tensor gradHx = empty({batch, size}, dtype, device);
  at::Tensor gradInputBias = hasBias ? empty({3 * size}, dtype, device) : at::Tensor();
  at::Tensor gradHiddenBias = hasBias ? empty({3 * size}, dtype, device) : at::Tensor();
  launch(
      device,
      "aten::_thnn_fused_gru_cell_backward",
      [grad = backing(gradHy),
       workspace = backing(workspace),
       gradInputGates = backing(gradInputGates),
       gradHiddenGates = backing(gradHiddenGates),
       gradHx = backing(gradHx),
       gradInputBias = backing(gradInputBias),
       gradHiddenBias = backing(gradHiddenBias),
       size]() mutable {
        const at::Tensor reset = part(workspace, 0, size);
        const at::Tensor update = part(workspace, 1, size);
        const at::Tensor candidate = part(workspace, 2, size);
        const at::Tensor hx = part(workspace, 3, size);
        const at::Tensor hiddenCandidate = part(workspace, 4, size);
        at::mul_out(gradHx, grad, update);
        at::Tensor gradCandidate = part(gradInputGates, 2, size);
        at::tanh_backward_out(gradCandidate, grad - gradHx, candidate);
        at::Tensor gradReset = part(gradInputGates, 0, size);
        at::sigmoid_backward_out(gradReset, gradCandidate * hiddenCandidate, reset);
        at::Tensor gradUpdate = part(gradInputGates, 1, size);
        at::sigmoid_backward_out(gradUpdate, grad * (hx - candidate), update);
        part(gradHiddenGates, 0, size, 2).copy_(part(gradInputGates, 0, size, 2));
        at::Tensor gradHiddenCandidate = part(gradHiddenGates, 2, size);
        at::mul_out(gradHiddenCandidate, gradCandidate, reset);
        if (gradInputBias.defined()) {
          at::sum_out(gradInputBias, gradInputGates, at::IntArrayRef{0});
          at::sum_out(gradHiddenBias, gradHiddenGates, at::IntArrayRef{0});
        }
      },
      isLarge(workspace));
  return {
      std::move(gradInputGates),
      std::move(gradHiddenGates),
      std::move(gradHx),
      std::move(gradInputBias),
      std::move(gradHiddenBias)};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstmCell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstmCellBackward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gruCell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gruCellBackward));
}

} // namespace simdev
