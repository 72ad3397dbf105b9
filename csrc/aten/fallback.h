// The host fallback: what cannot be launched synchronises, runs on the host, and comes back.  It is counted.
#pragma once

#include "aten/inference.h"
#include "aten/plan.h"

#include <ATen/core/boxing/OperatorKernel.h>

#include <map>
#include <string>

namespace simdev {

enum class FallbackPolicy : uint8_t { Allow, Warn, Error };

// Process-wide; the initial value is SIMDEV_FALLBACK.  Returns the previous one.
FallbackPolicy exchangeFallbackPolicy(FallbackPolicy policy);
// How often each operator ran on the host since the last reset.
std::map<std::string, int64_t> fallbackCounts();
void resetFallbackCounts();

// Replaces the operator's arguments on the stack with its results.  Throws NotImplementedError under the Error policy and
// for operators that return views, which a copy would silently detach from their base.
void runFallback(
    const OperatorPlan& plan,
    c10::Device device,
    InferenceFailure why,
    torch::jit::Stack* stack);

// The boxed kernel of operators on sparse tensors: always the fallback.
class SparseKernel final : public c10::OperatorKernel {
 public:
  explicit SparseKernel(std::shared_ptr<OperatorPlan> plan) : plan_(std::move(plan)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  std::shared_ptr<OperatorPlan> plan_;
};

// The dispatcher's fallback for PrivateUse1: operators registered after us (custom operators with a kernel for the
// backing device) are launched like any other; what has no such kernel is refused.
void unregisteredOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

} // namespace simdev
