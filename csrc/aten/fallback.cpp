// Running operators on the host, and the counters that make it visible.  See fallback.h.
#include "aten/fallback.h"

#include "aten/backing.h"
#include "aten/inline.h"
#include "aten/launched.h"
#include "aten/synchronous.h"
#include "runtime/device.h"
#include "runtime/env.h"

#include <c10/core/DeviceGuard.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace simdev {

namespace {

std::atomic<FallbackPolicy>& policyVariable() {
  static std::atomic<FallbackPolicy> policy{static_cast<FallbackPolicy>(envChoice("SIMDEV_FALLBACK"))};
  return policy;
}

// A malformed setting is an error from the start, not at the first fallback.
[[maybe_unused]] const bool registered = [] {
  onInitialization([] { policyVariable(); });
  return true;
}();

struct Counters {
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
};

Counters& counters() {
  static auto* counters = new Counters;
  return *counters;
}

void recordFallback(const OperatorPlan& plan) {
  {
    std::lock_guard<std::mutex> lock(counters().mutex);
    ++counters().counts[plan.name];
  }
  switch (policyVariable().load(std::memory_order_relaxed)) {
    case FallbackPolicy::Allow:
      return;
    case FallbackPolicy::Warn:
      TORCH_WARN(plan.name, " ran on the host: it cannot be launched on simdev.");
      return;
    case FallbackPolicy::Error:
      TORCH_CHECK_NOT_IMPLEMENTED(
          false,
          plan.name,
          " cannot be launched on simdev and would run on the host, which the fallback policy 'error' "
          "forbids.");
  }
}

} // namespace

FallbackPolicy exchangeFallbackPolicy(FallbackPolicy policy) {
  return policyVariable().exchange(policy);
}

std::map<std::string, int64_t> fallbackCounts() {
  std::lock_guard<std::mutex> lock(counters().mutex);
  return counters().counts;
}

void resetFallbackCounts() {
  std::lock_guard<std::mutex> lock(counters().mutex);
  counters().counts.clear();
}

void runFallback(
    const OperatorPlan& plan,
    c10::Device device,
    InferenceFailure why,
    torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !plan.isView,
      plan.name,
      " returns a view, has no simdev kernel and cannot run on the host: the result would be a copy.");
  // Arguments that the shape function rejects are most likely wrong: then the kernel's own error comes first.
  if (why == InferenceFailure::Rejected) {
    runSynchronously(plan, device, KernelPlace::Host, stack);
    recordFallback(plan);
  } else {
    recordFallback(plan);
    runSynchronously(plan, device, KernelPlace::Host, stack);
  }
}

void SparseKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (activeDelegate() != nullptr) {
    runInline(plan_, op, stack);
    return;
  }
  const size_t count = plan_->arguments.size();
  const auto arguments = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count, count);
  const c10::Device device = operatorDevice(*plan_, arguments);
  c10::DeviceGuard guard(device);
  runFallback(*plan_, device, InferenceFailure::NoMetaKernel, stack);
}

void unregisteredOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static std::mutex mutex;
  static auto* plans = new std::unordered_map<c10::OperatorHandle, std::shared_ptr<OperatorPlan>>;
  std::shared_ptr<OperatorPlan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& entry = (*plans)[op];
    if (entry == nullptr) {
      entry = std::make_shared<OperatorPlan>(op);
    }
    plan = entry;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(kernelDispatchKey()),
      "Could not run '",
      c10::toString(op.operator_name()),
      "' with arguments from the 'simdev' backend: it has no kernel for "
      "simdev and none for the device that simdev runs ATen's kernels on.");
  if (activeDelegate() != nullptr) {
    runInline(plan, op, stack);
    return;
  }
  LaunchedKernel kernel(std::move(plan));
  kernel(op, keys, stack);
}

} // namespace simdev
