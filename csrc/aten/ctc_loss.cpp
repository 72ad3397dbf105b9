// Connectionist temporal classification.  The size of its second result depends on the longest target, which no Meta kernel
// tells; the host knows it, as ATen reads the lengths before it calls this operator.
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/index_checks.h"
#include "csrc/aten/launch_into.h"

#include <ATen/ops/_ctc_loss.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

namespace simdev {

namespace {

std::tuple<at::Tensor, at::Tensor> ctcLoss(
    const at::Tensor& logProbabilities,
    const at::Tensor& targets,
    c10::IntArrayRef inputLengths,
    c10::IntArrayRef targetLengths,
    int64_t blank,
    bool zeroInfinity) {
  const c10::Device device = logProbabilities.device();
  checkSameDevice(device, {targets});
  TORCH_CHECK(
      logProbabilities.dim() == 3,
      "log_probs must be 3-d (time, batch, classes), got ",
      logProbabilities.sizes());
  const int64_t time = logProbabilities.size(0);
  const int64_t batch = logProbabilities.size(1);
  TORCH_CHECK(blank >= 0 && blank < logProbabilities.size(2), "blank must be in label range");
  TORCH_CHECK(static_cast<int64_t>(inputLengths.size()) == batch, "input_lengths must be of size batch_size");
  TORCH_CHECK(
      static_cast<int64_t>(targetLengths.size()) == batch, "target_lengths must be of size batch_size");
  for (const int64_t length : inputLengths) {
    TORCH_CHECK(
        length <= time, "Expected input_lengths to have value at most ", time, ", but got value ", length);
  }
  int64_t longest = 0;
  for (const int64_t length : targetLengths) {
    TORCH_CHECK(length >= 0, "Expected target_lengths to have value at least 0, but got value ", length);
    longest = std::max(longest, length);
  }
  const c10::ScalarType dtype = logProbabilities.scalar_type();
  at::Tensor loss = empty({batch}, dtype, device);
  // For every step and every label of the target, with blanks between and around them.
  at::Tensor alpha = empty({batch, time, 2 * longest + 1}, dtype, device);
  launchInto(
      device,
      "aten::_ctc_loss",
      {loss, alpha},
      [logProbabilities = backing(logProbabilities),
       targets = backing(targets),
       inputLengths = inputLengths.vec(),
       targetLengths = targetLengths.vec(),
       blank,
       zeroInfinity] {
        checkLabels(targets, targetLengths, logProbabilities.size(2));
        auto [loss, alpha] =
            at::_ctc_loss(logProbabilities, targets, inputLengths, targetLengths, blank, zeroInfinity);
        return std::array{loss, alpha};
      },
      isLarge(alpha));
  return {std::move(loss), std::move(alpha)};
}

std::vector<int64_t> readIntegralLengths(const at::Tensor& lengths, const char* name) {
  TORCH_CHECK(c10::isIntegralType(lengths.scalar_type(), /*includeBool=*/false), name, " must be integral");
  return readLengths(lengths);
}

std::tuple<at::Tensor, at::Tensor> ctcLossOfTensors(
    const at::Tensor& logProbabilities,
    const at::Tensor& targets,
    const at::Tensor& inputLengths,
    const at::Tensor& targetLengths,
    int64_t blank,
    bool zeroInfinity) {
  return ctcLoss(
      logProbabilities,
      targets,
      readIntegralLengths(inputLengths, "input_lengths"),
      readIntegralLengths(targetLengths, "target_lengths"),
      blank,
      zeroInfinity);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_ctc_loss", TORCH_FN(ctcLoss));
  m.impl("_ctc_loss.Tensor", TORCH_FN(ctcLossOfTensors));
}

} // namespace simdev
