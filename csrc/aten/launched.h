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

// While it lives, the next launched out= overload of the operator named `name` ("aten::add") in this thread takes its output
// as it is: an ATen composite kernel has just inferred and allocated it.
class StructuredCallGuard {
 public:
  explicit StructuredCallGuard(const std::string& name);
  ~StructuredCallGuard();
  StructuredCallGuard(const StructuredCallGuard&) = delete;
  StructuredCallGuard& operator=(const StructuredCallGuard&) = delete;

 private:
  const std::string* previous_;
};

// The keys under which ATen's composite kernel of a structured operator is found, ours being registered over it:
// it serves every backend that has none of its own, and PrivateUse3 never has one.
inline constexpr c10::DispatchKeySet kCompositeKeys{c10::DispatchKey::PrivateUse3};

// A functional or in-place operator that ATen defines by shape function and out= kernel ("structured").  ATen's own
// composite kernel infers and allocates the outputs in C++ and calls out=; this passes on that they need no check.
class StructuredKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
};

} // namespace simdev
