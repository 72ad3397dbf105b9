// The operator layer over a delegate driver (driver/delegate_driver.h): kernels that run at once, on tensors of the
// delegate's own device.
//
// No shapes are inferred and no outputs allocated beforehand: the delegate's kernel is called with backing tensors, and
// what it returns is re-labelled as a simdev tensor.  No element is copied either way.  When the runtime starts with
// a delegate driver, every operator that the delegate has a kernel for gets one of the kernels here, over the tiers
// that serve other chips.  Lives in inline_operators.cpp: the unboxed ones of the most frequent operators.
#pragma once

#include "aten/backing.h"
#include "aten/plan.h"
#include "runtime/delegate.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace simdev {

// A tensor of the delegate over the memory of a simdev tensor.
at::Tensor delegateTensor(const at::Tensor& tensor, DelegateDriver& delegate);

// One operator's way to the delegate and back.
class InlineCall {
 public:
  explicit InlineCall(const char* name) : name_(name), delegate_(startedDelegate()) {}

  // Tensors of other devices pass, so that the delegate's kernel may say what it thinks of them; except plain tensors of
  // the delegate's own device, beside which a simdev tensor would look like one of them.
  at::Tensor argument(const at::Tensor& tensor);
  at::Generator argument(const at::Generator& generator);
  // Also decides where results belong: only those on a simdev device become simdev tensors.
  c10::Device argument(c10::Device device);
  // For copies, which go between our device and the delegate's own too.
  void acceptDelegateTensors() { acceptsDelegateTensors_ = true; }

  // Gives an argument's tensor back, to be used again by a later call.  Only for kernels in C++ that keep nothing:
  // making the tensor is a good part of what a call costs.
  static void recycle(const at::Tensor& original, at::Tensor&& argument) noexcept;

  // What the delegate's kernel returned, as a tensor of ours.
  at::Tensor result(at::Tensor tensor);
  // After the kernel has run: takes over new sizes and memory of an argument that it may have resized.
  void update(const at::Tensor& original, const at::Tensor& argument);

  // Runs the kernel in the dispatcher's state for kernels, and names the operator in its errors.
  template <typename Kernel>
  decltype(auto) run(Kernel&& kernel) {
    KernelDispatchGuard guard;
    try {
      if constexpr (std::is_void_v<decltype(kernel())>) {
        kernel();
        afterKernel();
      } else {
        decltype(auto) returned = kernel();
        afterKernel();
        return static_cast<decltype(returned)>(returned);
      }
    } catch (c10::Error& error) {
      nameOperator(error);
      throw;
    }
  }

  static c10::DispatchKeySet kernelKeys() { return c10::DispatchKeySet(kernelDispatchKey()); }

 private:
  void afterKernel() {
    if (C10_UNLIKELY(blocking())) {
      synchronize();
    }
  }
  static bool blocking();
  void synchronize() const;
  void nameOperator(c10::Error& error) const;
  c10::Storage shellFor(c10::TensorImpl& result, c10::DeviceIndex index);

  // Arguments and results so far, to find results that are or share one of them.  What does not fit is not found, which
  // costs such a result its identity and no more.
  struct Known {
    c10::TensorImpl* delegates;
    c10::StorageImpl* inner;
    c10::TensorImpl* ours;
  };
  void remember(c10::TensorImpl* delegates, c10::TensorImpl* ours) {
    if (count_ < known_.size()) {
      known_[count_++] = {delegates, delegates->unsafe_storage().unsafeGetStorageImpl(), ours};
    }
  }

  const char* name_;
  DelegateDriver& delegate_;
  c10::DeviceIndex device_ = -1; // of the first simdev tensor
  bool resultsAreOurs_ = true;
  bool acceptsDelegateTensors_ = false;
  size_t count_ = 0;
  std::array<Known, 6> known_;
};

// --- Unboxed kernels, made from ATen's own declaration of an operator (at::_ops::add_Tensor) --------------------------

namespace detail {

template <typename T>
struct InlineArgument { // numbers, shapes, ...
  InlineArgument(InlineCall&, T value) : value(std::forward<T>(value)) {}
  T get() { return std::forward<T>(value); }
  void finish(InlineCall&) {}
  T value;
};

template <>
struct InlineArgument<const at::Tensor&> {
  InlineArgument(InlineCall& call, const at::Tensor& tensor)
      : original(tensor), value(call.argument(tensor)) {}
  InlineArgument(InlineArgument&&) noexcept = default;
  ~InlineArgument() { InlineCall::recycle(original, std::move(value)); }
  const at::Tensor& get() { return value; }
  void finish(InlineCall&) {}
  const at::Tensor& original;
  at::Tensor value;
};

template <>
struct InlineArgument<at::Tensor&> {
  InlineArgument(InlineCall& call, at::Tensor& tensor) : original(tensor), value(call.argument(tensor)) {}
  InlineArgument(InlineArgument&&) noexcept = default;
  ~InlineArgument() { InlineCall::recycle(original, std::move(value)); }
  at::Tensor& get() { return value; }
  void finish(InlineCall& call) { call.update(original, value); }
  at::Tensor& original;
  at::Tensor value;
};

template <>
struct InlineArgument<const std::optional<at::Tensor>&> {
  InlineArgument(InlineCall& call, const std::optional<at::Tensor>& tensor) {
    if (tensor.has_value()) {
      value = call.argument(*tensor);
    }
  }
  const std::optional<at::Tensor>& get() { return value; }
  void finish(InlineCall&) {}
  std::optional<at::Tensor> value;
};

template <typename List>
struct InlineListArgument {
  InlineListArgument(InlineCall& call, const List& tensors) : originals(tensors) {
    value.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      value.push_back(call.argument(tensor));
    }
  }
  InlineListArgument(InlineListArgument&&) noexcept = default;
  ~InlineListArgument() {
    auto original = originals.begin();
    for (at::Tensor& tensor : value) {
      InlineCall::recycle(*original, std::move(tensor));
      ++original;
    }
  }
  void finish(InlineCall&) {}
  List originals; // refers to the caller's list
  std::vector<at::Tensor> value;
};

template <>
struct InlineArgument<at::TensorList> : InlineListArgument<at::TensorList> {
  using InlineListArgument::InlineListArgument;
  at::TensorList get() { return value; }
};

template <>
struct InlineArgument<const at::ITensorListRef&> : InlineListArgument<at::ITensorListRef> {
  using InlineListArgument::InlineListArgument;
  at::ITensorListRef get() { return value; }
};

template <>
struct InlineArgument<std::optional<at::Generator>> {
  InlineArgument(InlineCall& call, const std::optional<at::Generator>& generator) {
    if (generator.has_value() && generator->defined()) {
      value = call.argument(*generator);
    }
  }
  std::optional<at::Generator> get() { return value; }
  void finish(InlineCall&) {}
  std::optional<at::Generator> value;
};

template <>
struct InlineArgument<std::optional<c10::Device>> {
  InlineArgument(InlineCall& call, std::optional<c10::Device> device) {
    if (device.has_value()) {
      value = call.argument(*device);
    }
  }
  std::optional<c10::Device> get() { return value; }
  void finish(InlineCall&) {}
  std::optional<c10::Device> value;
};

template <typename T>
struct IsTuple : std::false_type {};
template <typename... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};

template <typename T>
T inlineResult(InlineCall& call, T value) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return call.result(std::move(value));
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    for (at::Tensor& tensor : value) {
      tensor = call.result(std::move(tensor));
    }
    return value;
  } else if constexpr (IsTuple<T>::value) {
    return std::apply([&](auto&... each) { return T{inlineResult(call, std::move(each))...}; }, value);
  } else {
    return value;
  }
}

template <typename... Arguments>
at::Tensor& writtenArgument(std::tuple<Arguments...>& arguments) {
  at::Tensor* written = nullptr;
  std::apply(
      [&](auto&... each) {
        const auto visit = [&](auto& argument) {
          if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, InlineArgument<at::Tensor&>>) {
            written = &argument.original;
          }
        };
        (visit(each), ...);
      },
      arguments);
  return *written;
}

template <typename Operator, typename Schema = typename Operator::schema>
struct InlineKernel;

template <typename Operator, typename Return, typename... Arguments>
struct InlineKernel<Operator, Return(Arguments...)> {
  static const char* name() {
    static const std::string name = *Operator::overload_name == '\0'
                                        ? std::string(Operator::name)
                                        : std::string(Operator::name) + "." + Operator::overload_name;
    return name.c_str();
  }

  static Return call(Arguments... arguments) {
    InlineCall call(name());
    if constexpr (
        std::string_view(Operator::name) == "aten::copy_" ||
        std::string_view(Operator::name) == "aten::_to_copy") {
      call.acceptDelegateTensors();
    }
    std::tuple<InlineArgument<Arguments>...> held{
        InlineArgument<Arguments>(call, std::forward<Arguments>(arguments))...};
    const auto kernel = [&]() -> Return {
      return std::apply(
          [](auto&... each) -> Return {
            return Operator::redispatch(InlineCall::kernelKeys(), each.get()...);
          },
          held);
    };
    if constexpr (std::is_same_v<Return, at::Tensor&>) {
      call.run(kernel);
      std::apply([&](auto&... each) { (each.finish(call), ...); }, held);
      return writtenArgument(held);
    } else if constexpr (std::is_void_v<Return>) {
      call.run(kernel);
    } else {
      return inlineResult(call, call.run(kernel));
    }
  }
};

} // namespace detail

// Registers the unboxed kernel of an operator.
template <typename Operator>
void registerInline(torch::Library& library) {
  using Kernel = detail::InlineKernel<Operator>;
  library.impl(
      Kernel::name(),
      torch::CppFunction(c10::CompileTimeFunctionPointer<typename Operator::schema, &Kernel::call>()));
}

// Calls the operator's kernel for the delegate with what is on the stack.
void runInline(
    const std::shared_ptr<OperatorPlan>& plan,
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

// inline_operators.cpp.  Registers all that it has, and returns their names.
std::vector<std::string> registerUnboxedInlineKernels(torch::Library& library);

// Which fused attention a call gets, in the terms of at::SDPBackend (inline_attention.cpp).
int64_t chooseInlineAttention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool isCausal,
    std::optional<double> scale,
    bool enableGqa);
std::vector<std::string> registerInlineAttention(torch::Library& library);
// inline_batch_norm.cpp
std::vector<std::string> registerInlineBatchNorm(torch::Library& library);

} // namespace simdev
