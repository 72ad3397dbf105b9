// Running Meta kernels and remembering what they said.  See inference.h.
#include "aten/inference.h"

#include "aten/backing.h"

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/List.h>

#include <bit>

namespace simdev {

namespace {

// Appends what the result can depend on; false when the argument cannot be part of a key.
class KeyBuilder {
 public:
  // `floats`: whether the values of floating-point numbers count.  They can set the size of a result (arange,
  // upsample), but not that of an argument, and an optimizer's change at every step.
  KeyBuilder(InferenceCache::Key& key, bool floats) : key_(key), floats_(floats) {}

  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      addTensor(value.toTensor());
    } else if (value.isNone()) {
      key_.push_back(kNone);
    } else if (value.isInt()) {
      push(kInt, static_cast<uint64_t>(value.toInt()));
    } else if (value.isBool()) {
      push(kBool, value.toBool());
    } else if (value.isDouble()) {
      push(kDouble, word(value.toDouble()));
    } else if (value.isComplexDouble()) {
      push(kComplex, word(value.toComplexDouble().real()));
      key_.push_back(word(value.toComplexDouble().imag()));
    } else if (value.isString()) {
      push(kString, value.toStringRef().size());
      key_.push_back(std::hash<std::string>{}(value.toStringRef()));
    } else if (value.isDevice()) {
      key_.push_back(kDevice); // which device it is does not change a shape
    } else if (value.isGenerator()) {
      key_.push_back(kGenerator);
    } else if (value.isList()) { // of tensors, optional tensors or scalars
      push(kList, value.toListRef().size());
      for (const c10::IValue& element : value.toListRef()) {
        if (!add(element)) {
          return false;
        }
      }
    } else {
      return false;
    }
    return true;
  }

 private:
  enum Tag : uint64_t {
    kNone = 0xA0,
    kInt,
    kBool,
    kDouble,
    kComplex,
    kString,
    kDevice,
    kGenerator,
    kList,
    kTensor,
    kUndefined,
  };

  uint64_t word(double value) const { return floats_ ? std::bit_cast<uint64_t>(value) : 0; }
  void push(Tag tag, uint64_t value) {
    key_.push_back(tag);
    key_.push_back(value);
  }
  void addTensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      key_.push_back(kUndefined);
      return;
    }
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const auto dtype = static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype()));
    const uint64_t flags = (tensor.is_cpu() ? 1u : 0u) | (impl->is_wrapped_number() ? 2u : 0u) |
                           (impl->is_conj() ? 4u : 0u) | (impl->is_neg() ? 8u : 0u);
    key_.push_back(kTensor | dtype << 16 | flags << 32 | static_cast<uint64_t>(impl->dim()) << 48);
    for (int64_t x : impl->sizes()) {
      key_.push_back(static_cast<uint64_t>(x));
    }
    for (int64_t x : impl->strides()) {
      key_.push_back(static_cast<uint64_t>(x));
    }
  }

  InferenceCache::Key& key_;
  bool floats_;
};

at::Tensor metaTensor(const at::Tensor& tensor) {
  // A 0-dim host tensor keeps its device: type promotion and device checks treat it as a scalar.
  if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) {
    return tensor;
  }
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.is_conj()) {
    meta._set_conj(true);
  }
  if (tensor.is_neg()) {
    meta._set_neg(true);
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

c10::IValue metaArgument(const OperatorPlan::Argument& argument, const c10::IValue& value) {
  using Kind = OperatorPlan::ArgumentKind;
  switch (argument.kind) {
    case Kind::Tensor:
      return value.isTensor() ? metaTensor(value.toTensor()) : value;
    case Kind::TensorList: {
      if (!value.isTensorList()) {
        return value;
      }
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(metaTensor(tensor));
      }
      return list;
    }
    case Kind::OptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor.has_value() ? std::optional<at::Tensor>(metaTensor(*tensor)) : std::nullopt);
      }
      return list;
    }
    case Kind::Device:
      return c10::Device(c10::DeviceType::Meta);
    case Kind::Generator:
      return c10::IValue(); // Meta kernels draw nothing
    case Kind::Other:
      return value;
  }
  return value;
}

TensorSpec specOf(const at::Tensor& tensor) {
  TensorSpec spec;
  if (tensor.defined()) {
    spec.defined = true;
    spec.dtype = tensor.scalar_type();
    spec.conj = tensor.is_conj();
    spec.neg = tensor.is_neg();
    spec.sizes = tensor.sizes();
    spec.strides = tensor.strides();
  }
  return spec;
}

std::shared_ptr<Inference> inferenceOf(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> results) {
  auto inference = std::make_shared<Inference>();
  for (size_t i = 0; i < plan.returns.size(); ++i) {
    if (plan.returns[i].alias >= 0) {
      continue;
    }
    auto& specs = inference->fresh.emplace_back();
    if (plan.returns[i].isList) {
      for (const at::Tensor& tensor : results[i].toTensorVector()) {
        specs.push_back(specOf(tensor));
      }
    } else {
      specs.push_back(specOf(results[i].isTensor() ? results[i].toTensor() : at::Tensor()));
    }
  }
  return inference;
}

// False when the arguments do not make a key.
bool makeKey(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, InferenceCache::Key& key) {
  key.clear();
  KeyBuilder builder(key, plan.hasFreshOutputs || plan.hasOutArguments);
  for (const c10::IValue& argument : arguments) {
    if (!builder.add(argument)) {
      return false;
    }
  }
  return true;
}

// Python Meta kernels must not meet the caller's torch function modes (set_default_device, ...).
class TorchFunctionDisabledGuard {
 public:
  TorchFunctionDisabledGuard() : previous_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~TorchFunctionDisabledGuard() { at::impl::PythonTorchFunctionTLS::set_disabled_state(previous_); }

 private:
  at::impl::TorchFunctionDisabledState previous_;
};

std::shared_ptr<const Inference> runMeta(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments) {
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    // Of an out= argument with elements the Meta kernel would warn; that is for whoever resizes the real one.
    const bool isOut = plan.arguments[i].isOut && arguments[i].isTensor();
    stack.push_back(
        isOut ? c10::IValue(at::detail::empty_meta({0}, arguments[i].toTensor().scalar_type()))
              : metaArgument(plan.arguments[i], arguments[i]));
  }
  const torch::jit::Stack before = plan.hasOutArguments ? stack : torch::jit::Stack();
  {
    KernelDispatchGuard dispatch;
    TorchFunctionDisabledGuard function;
    plan.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  }
  auto inference = inferenceOf(plan, stack);
  for (size_t i = 0; i < before.size(); ++i) {
    if (plan.arguments[i].isOut && before[i].isTensor()) {
      const at::Tensor& meta = before[i].toTensor();
      if (meta.sizes() != arguments[i].toTensor().sizes()) {
        inference->resized.emplace_back(i, specOf(meta));
      }
    }
  }
  return inference;
}

} // namespace

size_t InferenceCache::Hash::operator()(const Key& key) const noexcept {
  uint64_t hash = key.size();
  for (uint64_t word : key) {
    hash = (std::rotl(hash, 23) ^ word) * 0x9E3779B97F4A7C15ull;
  }
  return hash ^ (hash >> 32);
}

std::shared_ptr<const Inference> InferenceCache::find(const Key& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

void InferenceCache::insert(Key key, std::shared_ptr<const Inference> inference) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= kMaxEntries) {
    entries_.clear();
  }
  entries_.emplace(std::move(key), std::move(inference));
}

std::shared_ptr<const Inference>
infer(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, InferenceFailure& failure) {
  failure = InferenceFailure::NoMetaKernel;
  if (plan.uninferable.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  thread_local InferenceCache::Key key;
  const bool cacheable = makeKey(plan, arguments, key);
  if (cacheable) {
    if (auto known = plan.inferences->find(key)) {
      failure = InferenceFailure::None;
      return known;
    }
  }
  if (plan.learned) {
    failure = InferenceFailure::NotLearned;
    return nullptr;
  }
  InferenceCache::Key ownKey = key; // Meta kernels may come back here
  std::shared_ptr<const Inference> inference;
  try {
    inference = runMeta(plan, arguments);
  } catch (const c10::NotImplementedError&) {
    plan.uninferable.store(true, std::memory_order_relaxed);
    return nullptr;
  } catch (const std::exception&) {
    failure = InferenceFailure::Rejected;
    return nullptr;
  }
  failure = InferenceFailure::None;
  if (cacheable) {
    plan.inferences->insert(std::move(ownKey), inference);
  }
  return inference;
}

void learn(
    const OperatorPlan& plan,
    c10::ArrayRef<c10::IValue> arguments,
    c10::ArrayRef<c10::IValue> results) {
  InferenceCache::Key key;
  if (makeKey(plan, arguments, key)) {
    plan.inferences->insert(std::move(key), inferenceOf(plan, results));
  }
}

} // namespace simdev
