// Launching a closure that makes new tensors, whose places the host has allocated.
#pragma once

#include "csrc/aten/launch.h"
#include "csrc/aten/placement.h"

#include <utility>
#include <vector>

namespace simdev {

// Runs `compute` on the current stream of `device` and makes each of `outputs` hold the result at its index, without copying
// where compute() allocated it in one piece (placement.h).  `compute` works on backing tensors as for launch() and returns
// a backing tensor, or a std::array or std::vector of them.
template <typename Compute>
void launchInto(
    c10::Device device,
    const char* name,
    at::TensorList outputs,
    Compute compute,
    bool parallel) {
  launch(
      device,
      name,
      [outputs = backing(outputs), compute = std::move(compute)] {
        OutputPlacement placement(outputs);
        const auto results = compute();
        placement.finish(results);
      },
      parallel);
}

} // namespace simdev
