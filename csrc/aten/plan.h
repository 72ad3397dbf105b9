// What the generic tier knows about an operator from its schema, worked out once at registration.
//
// An operator is named in one place only, PyTorch's own registry; nothing here lists operators except the few rules
// in registration.cpp that a schema cannot tell.
#pragma once

#include "aten/index_checks.h"
#include "runtime/philox_state.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace simdev {

class InferenceCache;

struct OperatorPlan {
  explicit OperatorPlan(const c10::OperatorHandle& handle);
  ~OperatorPlan();

  enum class ArgumentKind : uint8_t { Tensor, TensorList, OptionalTensorList, Generator, Device, Other };
  struct Argument {
    ArgumentKind kind;
    bool isWritten;
    bool isOut; // an `out=` argument: may be resized
  };
  struct Return {
    int alias; // index of the argument that this return is, or -1 for a fresh value
    bool isTensor;
    bool isList;
  };

  c10::OperatorHandle op;
  const char* name; // "aten::add.Tensor"; never freed, since errors that outlive everything name it
  c10::SmallVector<Argument, 8> arguments;
  c10::SmallVector<Return, 4> returns;
  bool isView = false; // some return aliases an argument without writing it: never launched, never a fallback
  bool returnsOnlyTensors = true; // otherwise the host needs a value: cannot be asynchronous
  bool hasFreshOutputs = false;
  bool hasOutArguments = false;
  bool computeBound = false; // does more than a few operations for each element
  bool isMatrixProduct = false; // of its last two tensors
  // Asked before ATen's kernel, on backing tensors: false leaves the call to that one.
  bool (*replacement)(c10::ArrayRef<c10::IValue> arguments) = nullptr;
  bool resizesSilently = false; // its CPU kernel resizes an out= argument of another size without the warning
  bool hostOnly = false; // see the rules in registration.cpp
  bool dataDependent = false; // the host must see the result before it can go on: its shape or a number
  c10::ArrayRef<IndexCheck> indexChecks;
  bool takesHostTensors = false; // CPU tensors of any size are legal beside device ones and are moved over
  bool takesHostScalarsInLists = false; // 0-dim CPU tensors in lists too are numbers
  // The Meta kernel describes another device's kernel: the first call of a signature waits and tells what to expect.
  bool learned = false;
  // Set when the Meta kernel turned out to be missing: ask no more.
  mutable std::atomic<bool> uninferable{false};
  std::unique_ptr<InferenceCache> inferences;
};

// The device that an operator runs on: that of its first simdev tensor, or its Device argument, or the current one.
// Throws what CUDA throws when tensors are on several devices.
c10::Device operatorDevice(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments);

// The arguments as its kernel sees them: backing tensors, the kernel's device, and None for a generator, in whose place
// KernelGenerator puts one when the kernel runs.
torch::jit::Stack
kernelArguments(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, c10::Device device);

// The generator argument of one call, if the operator has one.  What the call draws is settled when it is made; the kernel's
// generator is made anew whenever the kernel runs, since that is a stateful object and a captured graph runs it again.
class KernelGenerator {
 public:
  // Takes a number for each element of the largest tensor.
  KernelGenerator(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, c10::Device device);
  void place(torch::jit::Stack& kernelArguments) const;

 private:
  size_t index_; // the number of arguments for none
  c10::DeviceIndex device_;
  PhiloxState state_;
};

// Whether the kernel has enough to do for more than one thread (kernel_scope.h).
bool isLarge(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments);

// Appends the tensors of the fresh returns, in order; `results` are all returns.
void freshTensors(
    const OperatorPlan& plan,
    c10::ArrayRef<c10::IValue> results,
    std::vector<at::Tensor>& tensors);

} // namespace simdev
