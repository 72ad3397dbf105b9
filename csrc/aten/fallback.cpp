// Running operators on the host, and the counters that make it visible.  See fallback.h.
#include "aten/fallback.h"

#include "aten/backing.h"
#include "aten/factories.h"
#include "aten/inline.h"
#include "aten/launched.h"
#include "aten/sparse.h"
#include "aten/views.h"
#include "driver/driver.h"
#include "runtime/device.h"
#include "runtime/env.h"
#include "runtime/stream.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

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

// A host result as a tensor of the device.  The copy is in stream order: other threads may have given the stream work
// since, which may still use the memory that the result gets.
at::Tensor toDevice(const at::Tensor& result, c10::Device device) {
  if (!result.defined() || result.is_privateuseone()) {
    return result;
  }
  if (isSparse(result)) {
    return sparseToDevice(result, [device](const at::Tensor& part) { return toDevice(part, device); });
  }
  at::Tensor tensor = result.is_non_overlapping_and_dense()
                          ? emptyStrided(result.sizes(), result.strides(), result.scalar_type(), device)
                          : empty(result.sizes(), result.scalar_type(), device);
  tensor._set_conj(result.is_conj());
  tensor._set_neg(result.is_neg());
  tensor.copy_(result);
  return tensor;
}

c10::IValue toDevice(const c10::IValue& result, c10::Device device) {
  if (result.isTensor()) {
    return toDevice(result.toTensor(), device);
  }
  if (result.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : result.toTensorVector()) {
      list.push_back(toDevice(tensor, device));
    }
    return list;
  }
  return result;
}

void waitForStream(const OperatorPlan& plan, StreamHandle stream) {
  try {
    driver().synchronizeStream(stream);
  } catch (c10::Error& error) {
    if (driver().captureInfo(stream).status != CaptureStatus::None) {
      error.add_context(c10::str(plan.name, " runs on the host, which a graph cannot capture"));
    }
    throw;
  }
}

// Waits for the stream, runs the kernel in this thread over backing tensors, and puts its results on the device.
void runSynchronously(const OperatorPlan& plan, c10::Device device, torch::jit::Stack* stack) {
  const size_t count = plan.arguments.size();
  const auto arguments = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count, count);
  waitForStream(plan, currentStreamHandle(device.index()));

  torch::jit::Stack kernelStack = kernelArguments(plan, arguments, device);
  KernelGenerator(plan, arguments, device).place(kernelStack);
  std::vector<std::pair<size_t, at::Tensor>> hostOuts;
  {
    KernelDispatchGuard guard;
    for (size_t i = 0; i < count; ++i) {
      if (!arguments[i].isTensor()) {
        continue;
      }
      if (arguments[i].toTensor().defined() && arguments[i].toTensor().requires_grad()) {
        kernelStack[i].toTensor().set_requires_grad(true); // sparse kernels save more for backward then
      }
      if (isSparse(arguments[i].toTensor())) {
        if (plan.arguments[i].isWritten) {
          hostOuts.emplace_back(i, kernelStack[i].toTensor());
        }
      } else if (plan.arguments[i].isOut) {
        // The kernel may resize it, which memory of the device does not allow.
        const at::Tensor& out = arguments[i].toTensor();
        at::Tensor hostOut =
            at::empty_strided(out.sizes(), out.strides(), at::TensorOptions(out.scalar_type()));
        hostOut._set_conj(out.is_conj());
        hostOut._set_neg(out.is_neg());
        hostOut.copy_(backing(out));
        kernelStack[i] = hostOut;
        hostOuts.emplace_back(i, hostOut);
      }
    }
    plan.op.callBoxed(kernelStack); // by the backing tensors' own keys, which may be sparse ones
  }
  for (const auto& [index, hostOut] : hostOuts) {
    const at::Tensor& out = arguments[index].toTensor();
    if (isSparse(out)) {
      sparseAssign(out, toDevice(hostOut, device));
      continue;
    }
    if (out.sizes() != hostOut.sizes()) {
      resizeStrided(out, hostOut.sizes(), hostOut.strides());
    }
    out._set_conj(hostOut.is_conj()); // some kernels of LAPACK's leave the conjugation for later
    out._set_neg(hostOut.is_neg());
    KernelDispatchGuard guard;
    out.copy_(hostOut);
  }
  torch::jit::Stack results;
  for (size_t i = 0; i < plan.returns.size(); ++i) {
    const int alias = plan.returns[i].alias;
    if (alias >= 0) {
      results.push_back(arguments[static_cast<size_t>(alias)]);
    } else {
      KernelDispatchGuard guard;
      results.push_back(toDevice(kernelStack[i], device));
    }
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
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
    runSynchronously(plan, device, stack);
    recordFallback(plan);
  } else {
    recordFallback(plan);
    runSynchronously(plan, device, stack);
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

void runAndLearn(const OperatorPlan& plan, c10::Device device, torch::jit::Stack* stack) {
  const size_t count = plan.arguments.size();
  const torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  runSynchronously(plan, device, stack);
  const size_t returned = plan.returns.size();
  learn(plan, arguments, c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - returned, returned));
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
