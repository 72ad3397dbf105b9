// The launched tier: the one boxed kernel that serves every operator for which ATen has a kernel of the backing device.
#pragma once

#include "aten/plan.h"

#include <ATen/core/boxing/OperatorKernel.h>

namespace simdev {

// Infers and allocates the outputs on the host, then launches ATen's kernel on the current stream.  What cannot be
// launched goes on to the host fallback.
class LaunchedKernel final : public c10::OperatorKernel {
 public:
  explicit LaunchedKernel(std::shared_ptr<OperatorPlan> plan) : plan_(std::move(plan)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  std::shared_ptr<OperatorPlan> plan_;
};

// A functional or in-place operator that ATen defines by shape function and out= kernel ("structured").  ATen's own
// composite kernel infers and allocates the outputs in C++ and calls out=; this passes on that they need no check.
class StructuredKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
};

} // namespace simdev
