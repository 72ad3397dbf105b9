// Running a kernel while the host waits for it.  See synchronous.h.
#include "aten/synchronous.h"

#include "aten/backing.h"
#include "aten/factories.h"
#include "aten/inference.h"
#include "aten/launch.h"
#include "aten/placement.h"
#include "aten/sparse.h"
#include "aten/views.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty_strided.h>

#include <exception>
#include <memory>
#include <vector>

namespace simdev {

namespace {

// A call of the kernel over backing tensors.  The task on the stream owns it together with the host, whose wait may end
// with an error of earlier work.
class KernelCall {
 public:
  KernelCall(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, c10::Device device)
      : plan_(plan), stack_(kernelArguments(plan, arguments, device)), generator_(plan, arguments, device) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].isTensor() && arguments[i].toTensor().defined() &&
          arguments[i].toTensor().requires_grad()) {
        stack_[i].toTensor().set_requires_grad(true); // sparse kernels save more for backward then
      }
    }
    keepIdentities(arguments);
  }

  void run() {
    checkIndices(plan_.indexChecks, stack_);
    generator_.place(stack_);
    for (size_t i = 0; i < plan_.arguments.size(); ++i) {
      if (!stack_[i].isTensor()) {
        continue;
      }
      const at::Tensor argument = stack_[i].toTensor();
      if (isSparse(argument)) {
        if (!plan_.arguments[i].isOut) {
          checkSparseIndices(argument);
        }
        if (plan_.arguments[i].isWritten) {
          outs_.emplace_back(i, argument);
        }
      } else if (plan_.arguments[i].isOut) {
        // The kernel may resize it, which memory of the device does not allow.
        at::Tensor out = at::empty_strided(
            argument.sizes(), argument.strides(), at::TensorOptions(argument.scalar_type()));
        out._set_conj(argument.is_conj());
        out._set_neg(argument.is_neg());
        out.copy_(argument);
        stack_[i] = out;
        outs_.emplace_back(i, std::move(out));
      }
    }
    plan_.op.callBoxed(stack_); // by the backing tensors' own keys, which may be sparse ones
  }

  // For run() on the device: its error is the host's at once, not one of the stream.
  void runKeepingError() noexcept {
    try {
      run();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void rethrowError() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

  // After run(): the returns, and by argument index what stands for arguments that may have another shape now.
  const torch::jit::Stack& results() const { return stack_; }
  const std::vector<std::pair<size_t, at::Tensor>>& outs() const { return outs_; }

 private:
  // Adding a sparse tensor to itself works for layouts of which two cannot be added.
  void keepIdentities(c10::ArrayRef<c10::IValue> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      for (size_t j = i + 1; j < arguments.size(); ++j) {
        if (arguments[i].isTensor() && arguments[j].isTensor() && isSparse(arguments[i].toTensor()) &&
            arguments[i].toTensor().is_same(arguments[j].toTensor())) {
          stack_[j] = stack_[i];
        }
      }
    }
  }

  const OperatorPlan& plan_;
  torch::jit::Stack stack_;
  KernelGenerator generator_;
  std::vector<std::pair<size_t, at::Tensor>> outs_;
  std::exception_ptr error_;
};

// In stream order: other threads may have given the stream work since, which may still use the memory that `dst` got.
void launchCopy(const at::Tensor& dst, const at::Tensor& result) {
  launch(
      dst.device(),
      "aten::copy_",
      [dst = backing(dst), result] { copyElements(dst, result); },
      /*parallel=*/false); // its kernel may have run on the worker alone, and teams that come and go are slow
}

// What a kernel returned as a tensor of the device.
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
  launchCopy(tensor, result);
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

void assignOut(const at::Tensor& out, const at::Tensor& result) {
  if (isSparse(out)) {
    sparseAssign(out, toDevice(result, out.device()));
    return;
  }
  if (out.sizes() != result.sizes()) {
    resizeStrided(out, result.sizes(), result.strides());
  }
  out._set_conj(result.is_conj()); // some kernels of LAPACK's leave the conjugation for later
  out._set_neg(result.is_neg());
  launchCopy(out, result);
}

void waitForStream(const OperatorPlan& plan, StreamHandle stream) {
  try {
    driver().synchronizeStream(stream);
  } catch (c10::Error& error) {
    if (driver().captureInfo(stream).status != CaptureStatus::None) {
      error.add_context(c10::str("the host waits for ", plan.name, ", which a graph cannot capture"));
    }
    throw;
  }
}

} // namespace

void runSynchronously(
    const OperatorPlan& plan,
    c10::Device device,
    KernelPlace place,
    torch::jit::Stack* stack) {
  const size_t count = plan.arguments.size();
  const auto arguments = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count, count);
  const StreamHandle stream = currentStreamHandle(device.index());
  if (place == KernelPlace::Host || driver().captureInfo(stream).status != CaptureStatus::None) {
    waitForStream(plan, stream);
  }
  const auto call = std::make_shared<KernelCall>(plan, arguments, device);
  if (place == KernelPlace::Host) {
    KernelDispatchGuard guard;
    call->run();
  } else {
    launch(device, plan.name, [call] { call->runKeepingError(); }, isLarge(plan, arguments));
    waitForStream(plan, stream);
    call->rethrowError();
  }
  KernelDispatchGuard guard;
  for (const auto& [index, result] : call->outs()) {
    assignOut(arguments[index].toTensor(), result);
  }
  torch::jit::Stack results;
  for (size_t i = 0; i < plan.returns.size(); ++i) {
    const int alias = plan.returns[i].alias;
    results.push_back(
        alias >= 0 ? arguments[static_cast<size_t>(alias)] : toDevice(call->results()[i], device));
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

void runAndLearn(const OperatorPlan& plan, c10::Device device, torch::jit::Stack* stack) {
  const size_t count = plan.arguments.size();
  const torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  runSynchronously(plan, device, KernelPlace::Device, stack);
  const size_t returned = plan.returns.size();
  learn(plan, arguments, c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - returned, returned));
}

} // namespace simdev
