// The generic boxed kernel.  See launched.h.
#include "aten/launched.h"

#include "aten/backing.h"
#include "aten/factories.h"
#include "aten/fallback.h"
#include "aten/inference.h"
#include "aten/kernel_scope.h"
#include "aten/placement.h"
#include "aten/synchronous.h"
#include "aten/views.h"
#include "driver/driver.h"
#include "runtime/stream.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

namespace simdev {

namespace {

// The base name of the operator whose composite kernel is about to call its own out= overload in this thread.
thread_local const std::string* structuredCaller = nullptr;

class OperatorTask final : public Task {
 public:
  OperatorTask(
      const OperatorPlan& plan,
      c10::DeviceIndex device,
      torch::jit::Stack arguments,
      const KernelGenerator& generator,
      std::vector<at::Tensor> outputs)
      : plan_(plan),
        device_(device),
        arguments_(std::move(arguments)),
        generator_(generator),
        outputs_(std::move(outputs)) {}

  void run() override {
    KernelScope scope(device_, isLarge(plan_, arguments_));
    checkIndices(plan_.indexChecks, arguments_);
    torch::jit::Stack stack = arguments_; // a captured graph runs this again
    generator_.place(stack);
    if (outputs_.empty()) {
      if (plan_.replacement != nullptr && plan_.replacement(stack)) {
        return;
      }
      plan_.op.redispatchBoxed(c10::DispatchKeySet(kernelDispatchKey()), &stack);
      return;
    }
    OutputPlacement placement(outputs_);
    plan_.op.redispatchBoxed(c10::DispatchKeySet(kernelDispatchKey()), &stack);
    std::vector<at::Tensor> results;
    results.reserve(outputs_.size());
    freshTensors(plan_, stack, results);
    placement.finish(results);
  }
  const char* name() const noexcept override { return plan_.name; }

 private:
  const OperatorPlan& plan_; // plans live as long as the registrations that own them: for ever
  c10::DeviceIndex device_;
  torch::jit::Stack arguments_;
  KernelGenerator generator_;
  std::vector<at::Tensor> outputs_;
};

c10::IValue allocateReturn(
    const OperatorPlan::Return& entry,
    const std::vector<TensorSpec>& specs,
    c10::Device device,
    std::vector<at::Tensor>& outputs) {
  c10::List<at::Tensor> list;
  at::Tensor tensor;
  for (const TensorSpec& spec : specs) {
    tensor = at::Tensor();
    if (spec.defined) {
      tensor = emptyStrided(spec.sizes, spec.strides, spec.dtype, device);
      tensor._set_conj(spec.conj);
      tensor._set_neg(spec.neg);
    }
    outputs.push_back(backing(tensor));
    if (entry.isList) {
      list.push_back(tensor);
    }
  }
  return entry.isList ? c10::IValue(std::move(list)) : c10::IValue(std::move(tensor));
}

void resizeOutArguments(
    const OperatorPlan& plan,
    const Inference& inference,
    c10::ArrayRef<c10::IValue> arguments) {
  for (const auto& [index, spec] : inference.resized) {
    const at::Tensor& out = arguments[index].toTensor();
    if (!plan.resizesSilently) {
      at::native::resize_output_check(out, spec.sizes);
    }
    at::assert_no_internal_overlap(out); // afterwards it has none
    resizeStrided(out, spec.sizes, spec.strides);
  }
}

} // namespace

void LaunchedKernel::operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const OperatorPlan& plan = *plan_;
  const size_t count = plan.arguments.size();
  const auto arguments = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count, count);
  const c10::Device device = operatorDevice(plan, arguments);
  c10::DeviceGuard deviceGuard(device);
  if (plan.dataDependent) {
    runSynchronously(plan, device, KernelPlace::Device, stack);
    return;
  }

  const std::string* caller = std::exchange(structuredCaller, nullptr);
  const bool inferred = caller != nullptr && *caller == plan.op.operator_name().name;
  std::shared_ptr<const Inference> inference;
  if (!inferred || plan.hostOnly) {
    InferenceFailure failure = InferenceFailure::NoMetaKernel;
    if (!plan.hostOnly && plan.returnsOnlyTensors) {
      inference = infer(plan, arguments, failure);
    }
    if (failure == InferenceFailure::NotLearned) {
      runAndLearn(plan, device, stack);
      return;
    }
    // Without a Meta kernel an in-place operator can still be launched: its outputs are its arguments.
    const bool launchable =
        inference != nullptr || (failure == InferenceFailure::NoMetaKernel && !plan.hostOnly &&
                                 !plan.hasFreshOutputs && !plan.hasOutArguments);
    if (!launchable) {
      runFallback(plan, device, failure, stack);
      return;
    }
  }

  torch::jit::Stack results;
  results.reserve(plan.returns.size());
  std::vector<at::Tensor> outputs;
  if (inference != nullptr) {
    resizeOutArguments(plan, *inference, arguments);
  }
  size_t fresh = 0;
  for (const OperatorPlan::Return& entry : plan.returns) {
    if (entry.alias >= 0) {
      results.push_back(arguments[static_cast<size_t>(entry.alias)]);
    } else {
      results.push_back(allocateReturn(entry, inference->fresh[fresh++], device, outputs));
    }
  }
  driver().launch(
      currentStreamHandle(device.index()),
      std::make_unique<OperatorTask>(
          plan,
          device.index(),
          kernelArguments(plan, arguments, device),
          KernelGenerator(plan, arguments, device),
          std::move(outputs)));
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

StructuredCallGuard::StructuredCallGuard(const std::string& name)
    : previous_(std::exchange(structuredCaller, &name)) {}

StructuredCallGuard::~StructuredCallGuard() {
  structuredCaller = previous_;
}

void StructuredKernel::operator()(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  StructuredCallGuard guard(op.operator_name().name);
  op.redispatchBoxed(kCompositeKeys, stack);
}

} // namespace simdev
