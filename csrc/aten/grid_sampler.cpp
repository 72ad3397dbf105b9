// The gradients of grid_sample in two dimensions.  Where the grid is not a number, ATen's kernel for the CPU follows it
// into memory that is not the image's, if what is outside the image is its border or its reflection.  Such a point has no
// gradient here, as on CUDA.
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/launch_into.h"

#include <ATen/native/GridSamplerUtils.h>
#include <ATen/ops/grid_sampler_2d_backward.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace simdev {

namespace {

using at::native::detail::GridSamplerInterpolation;
using at::native::detail::GridSamplerPadding;

// Which points the kernel must not see.  Infinity has a border, but no reflection.
at::Tensor wildPoints(const at::Tensor& grid, const at::Tensor& input, int64_t padding) {
  const bool reflects = padding == static_cast<int64_t>(GridSamplerPadding::Reflection);
  const int64_t longest = std::max(input.size(2), input.size(3));
  return (reflects ? grid.mul(longest).isfinite().logical_not() : grid.isnan()).any(-1);
}

std::tuple<at::Tensor, at::Tensor> gridSampler2dBackward(
    const at::Tensor& gradOutput,
    const at::Tensor& input,
    const at::Tensor& grid,
    int64_t interpolation,
    int64_t padding,
    bool alignCorners,
    std::array<bool, 2> outputMask) {
  const c10::Device device = input.device();
  checkSameDevice(device, {gradOutput, grid});
  at::Tensor gradInput = outputMask[0] ? empty(input.sizes(), input.scalar_type(), device) : at::Tensor();
  at::Tensor gradGrid = empty(grid.sizes(), grid.scalar_type(), device);
  const bool followsWildPoints = interpolation == static_cast<int64_t>(GridSamplerInterpolation::Bilinear) &&
                                 padding != static_cast<int64_t>(GridSamplerPadding::Zeros);
  launchInto(
      device,
      "aten::grid_sampler_2d_backward",
      {gradInput, gradGrid},
      [=, gradOutput = backing(gradOutput), input = backing(input), grid = backing(grid)] {
        at::Tensor gradients = gradOutput;
        at::Tensor points = grid;
        if (followsWildPoints) {
          const at::Tensor wild = wildPoints(grid, input, padding);
          if (wild.any().item<bool>()) {
            gradients = gradOutput.masked_fill(wild.unsqueeze(1), 0);
            points = grid.masked_fill(wild.unsqueeze(-1), 0);
          }
        }
        auto [inputResult, gridResult] = at::grid_sampler_2d_backward(
            gradients, input, points, interpolation, padding, alignCorners, outputMask);
        return std::array{inputResult, gridResult};
      },
      std::max(input.nbytes(), gradOutput.nbytes()) >= kParallelBytesOfComputeBound);
  return {std::move(gradInput), std::move(gradGrid)};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("grid_sampler_2d_backward", TORCH_FN(gridSampler2dBackward));
}

} // namespace simdev
