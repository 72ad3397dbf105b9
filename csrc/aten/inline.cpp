// Calls of the delegate's kernels, boxed, and which operators they serve.  See inline.h.
#include "aten/inline.h"

#include "aten/plan.h"
#include "aten/random.h"
#include "aten/sparse.h"
#include "driver/driver.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace simdev {

namespace {

// Tensors of the delegate that a call has given back: without memory, used by nobody.
class TensorPool {
 public:
  TensorPool() { free_.reserve(kCapacity); }

  c10::intrusive_ptr<c10::TensorImpl> take(InnerStorage inner, const caffe2::TypeMeta& dtype) {
    if (C10_UNLIKELY(free_.empty() || c10::InferenceMode::is_enabled())) {
      return c10::make_intrusive<c10::TensorImpl>(
          c10::Storage(std::move(inner)), c10::DispatchKeySet(kernelDispatchKey()), dtype);
    }
    c10::intrusive_ptr<c10::TensorImpl> impl = std::move(free_.back());
    free_.pop_back();
    impl->set_storage_and_dtype(c10::Storage(std::move(inner)), dtype);
    return impl;
  }

  // Whether nobody else has it, and it is like one that take() makes.
  static bool accepts(const at::Tensor& tensor) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    return tensor.use_count() == 1 && tensor.getIntrusivePtr().weak_use_count() == 1 &&
           !impl->is_inference() && impl->key_set() == plainKeys() && !impl->is_wrapped_number() &&
           impl->allow_tensor_metadata_change();
  }

  void give(c10::intrusive_ptr<c10::TensorImpl> impl) {
    if (free_.size() < kCapacity) {
      impl->set_storage_keep_dtype(nothing_);
      free_.push_back(std::move(impl));
    }
  }

 private:
  static constexpr size_t kCapacity = 1024;

  static c10::DispatchKeySet plainKeys() {
    static const c10::DispatchKeySet keys = c10::make_intrusive<c10::TensorImpl>(
                                                c10::DispatchKeySet(kernelDispatchKey()),
                                                caffe2::TypeMeta::Make<float>(),
                                                startedDelegate().device(0))
                                                ->key_set();
    return keys;
  }

  c10::Storage nothing_{c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      0,
      c10::DataPtr(nullptr, startedDelegate().device(0)),
      /*allocator=*/nullptr,
      /*resizable=*/false)};
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> free_;
};

TensorPool& tensorPool() {
  static thread_local TensorPool pool;
  return pool;
}

} // namespace

void InlineCall::recycle(const at::Tensor& original, at::Tensor&& argument) noexcept {
  if (!argument.defined() || !TensorPool::accepts(argument)) {
    return;
  }
  c10::intrusive_ptr<c10::TensorImpl> impl = argument.unsafeReleaseIntrusivePtr();
  Shell* const shell = shellOf(*original.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  // A kernel may have given the argument other memory.
  if (shell == nullptr || shell->inner() != impl->unsafe_storage().unsafeGetStorageImpl() ||
      !shell->keepSpare(impl)) {
    tensorPool().give(std::move(impl));
  }
}

namespace {

// The tensor of an earlier call on the same memory, for this one; or nothing.  Like delegateTensor() it raises for a
// result of a CUDA graph that PyTorch has taken the storage from, since it was overwritten: storage() does.
c10::intrusive_ptr<c10::TensorImpl> spareFor(const c10::TensorImpl& ours) {
  Shell* const shell = shellOf(*ours.storage().unsafeGetStorageImpl());
  if (shell == nullptr || !shell->hasSpare() || c10::InferenceMode::is_enabled() || ours.is_conj() ||
      ours.is_neg() || ours.is_wrapped_number()) {
    return {};
  }
  auto spare = shell->takeSpare();
  if (spare != nullptr && spare->dtype() != ours.dtype()) {
    return {};
  }
  if (spare != nullptr && (spare->sizes() != ours.sizes() || spare->strides() != ours.strides() ||
                           spare->storage_offset() != ours.storage_offset())) {
    spare->set_sizes_and_strides(ours.sizes(), ours.strides(), ours.storage_offset());
  }
  return spare;
}

} // namespace

at::Tensor delegateTensor(const at::Tensor& tensor, DelegateDriver& delegate) {
  const c10::TensorImpl* const ours = tensor.unsafeGetTensorImpl();
  auto impl = tensorPool().take(innerStorage(ours->storage()), ours->dtype());
  impl->set_sizes_and_strides(ours->sizes(), ours->strides(), ours->storage_offset());
  if (C10_UNLIKELY(ours->is_conj())) {
    impl->_set_conj(true);
  }
  if (C10_UNLIKELY(ours->is_neg())) {
    impl->_set_neg(true);
  }
  if (C10_UNLIKELY(ours->is_wrapped_number())) {
    impl->set_wrapped_number(true);
  }
  return at::Tensor(std::move(impl));
}

// --- InlineCall -----------------------------------------------------------------------------------------------------

at::Tensor InlineCall::argument(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (C10_LIKELY(tensor.is_privateuseone())) {
    if (C10_UNLIKELY(isSparse(tensor))) {
      return sparseBacking(tensor);
    }
    auto spare = spareFor(*tensor.unsafeGetTensorImpl());
    at::Tensor converted =
        spare != nullptr ? at::Tensor(std::move(spare)) : delegateTensor(tensor, delegate_);
    if (device_ < 0) {
      device_ = tensor.unsafeGetTensorImpl()->device().index();
    }
    remember(converted.unsafeGetTensorImpl(), tensor.unsafeGetTensorImpl());
    return converted;
  }
  const c10::Device device = tensor.device();
  TORCH_CHECK(
      device.type() != delegate_.type() || device.is_cpu() || acceptsDelegateTensors_,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      c10::Device(kDeviceType, std::max<c10::DeviceIndex>(device_, 0)),
      " and ",
      device,
      "! (when checking arguments of ",
      name_,
      ")");
  return tensor;
}

at::Generator InlineCall::argument(const at::Generator& generator) {
  if (generator.device().type() != kDeviceType) {
    return generator; // the delegate's kernel refuses it
  }
  GeneratorImpl& own = *generator.get<GeneratorImpl>();
  const at::Generator& delegates = own.delegate();
  return delegates.defined() ? delegates
                             : kernelGenerator(own.reserve(/*increment=*/1), generator.device().index());
}

c10::Device InlineCall::argument(c10::Device device) {
  if (device.type() != kDeviceType) {
    resultsAreOurs_ = false;
    return device;
  }
  const c10::DeviceIndex index = resolveDeviceIndex(device.index());
  device_ = index;
  return delegate_.device(index);
}

c10::Storage InlineCall::shellFor(c10::TensorImpl& result, c10::DeviceIndex index) {
  const c10::Storage& inner = result.unsafe_storage();
  if (inner.use_count() > 1) {
    for (size_t i = 0; i < count_; ++i) {
      if (known_[i].inner == inner.unsafeGetStorageImpl()) {
        return known_[i].ours->unsafe_storage();
      }
    }
  }
  return makeShell(InnerStorage::reclaim_copy(inner.unsafeGetStorageImpl()), index);
}

at::Tensor InlineCall::result(at::Tensor tensor) {
  if (!tensor.defined() || tensor.device().type() != delegate_.type() || !resultsAreOurs_) {
    return tensor;
  }
  if (C10_UNLIKELY(isSparse(tensor))) {
    return sparseToDevice(tensor, [this](const at::Tensor& part) { return result(part); });
  }
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(impl->unsafe_storage().use_count() > 1 || tensor.use_count() > 1)) {
    for (size_t i = 0; i < count_; ++i) {
      if (known_[i].delegates == impl) {
        return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(known_[i].ours));
      }
    }
  }
  // A fresh result is nobody else's, and changes its device where it stands.
  if (C10_UNLIKELY(tensor.use_count() > 1 || !impl->allow_tensor_metadata_change())) {
    tensor = at::Tensor(
        impl->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
    impl = tensor.unsafeGetTensorImpl();
  }
  const c10::DeviceIndex index = impl->device().index() >= 0 && !impl->device().is_cpu()
                                     ? impl->device().index()
                                     : std::max<c10::DeviceIndex>(device_, 0);
  c10::StorageImpl* const inner = impl->unsafe_storage().unsafeGetStorageImpl();
  impl->set_storage_keep_dtype(shellFor(*impl, index));
  impl->_change_backend_component_keys(c10::Device(kDeviceType, index));
  if (count_ < known_.size()) {
    known_[count_++] = {nullptr, inner, impl};
  }
  return tensor;
}

void InlineCall::update(const at::Tensor& original, const at::Tensor& argument) {
  if (!original.defined() || !original.is_privateuseone()) {
    return;
  }
  if (C10_UNLIKELY(isSparse(original))) {
    sparseAssign(original, result(argument));
    return;
  }
  const c10::TensorImpl* const from = argument.unsafeGetTensorImpl();
  c10::TensorImpl* const to = original.unsafeGetTensorImpl();
  c10::StorageImpl* const inner = from->unsafe_storage().unsafeGetStorageImpl();
  const c10::StorageImpl* const shell = to->unsafe_storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(inner->data() != shell->data() || inner->nbytes() != shell->nbytes())) {
    updateShell(to->unsafe_storage(), InnerStorage::reclaim_copy(inner));
  }
  if (C10_UNLIKELY(
          from->sizes() != to->sizes() || from->strides() != to->strides() ||
          from->storage_offset() != to->storage_offset())) {
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  }
}

bool InlineCall::blocking() {
  static const bool on = [] {
    const char* value = std::getenv("SIMDEV_LAUNCH_BLOCKING");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return on;
}

void InlineCall::synchronize() const {
  const c10::Stream stream =
      delegate_.guard().getStream(delegate_.guardDevice(std::max<c10::DeviceIndex>(device_, 0)));
  const StreamHandle handle = delegate_.streamHandle(stream);
  if (delegate_.captureInfo(handle).status == CaptureStatus::None) {
    delegate_.synchronizeStream(handle);
  }
}

void InlineCall::nameOperator(c10::Error& error) const {
  error.add_context(
      c10::str("in ", name_, " on ", c10::Device(kDeviceType, std::max<c10::DeviceIndex>(device_, 0))));
}

namespace {

// --- The boxed kernel -------------------------------------------------------------------------------------------------

class BoxedInlineKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedInlineKernel(std::shared_ptr<OperatorPlan> plan) : plan_(std::move(plan)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const OperatorPlan& plan = *plan_;
    const size_t count = plan.arguments.size();
    const size_t base = stack->size() - count;
    InlineCall call(plan.name);
    c10::SmallVector<c10::IValue, 12> originals(count);
    c10::SmallVector<c10::IValue, 4> converted; // of written arguments, since the kernel drops its own
    bool sparse = false;
    for (size_t i = 0; i < count; ++i) {
      c10::IValue& slot = (*stack)[base + i];
      sparse |= slot.isTensor() && slot.toTensor().defined() && isSparse(slot.toTensor());
      if (convert(call, plan.arguments[i].kind, slot, originals[i]) && plan.arguments[i].isWritten) {
        converted.push_back(slot);
      }
    }
    call.run([&] {
      if (C10_UNLIKELY(sparse)) {
        op.callBoxed(stack); // by the arguments' own keys
      } else {
        op.redispatchBoxed(InlineCall::kernelKeys(), stack);
      }
    });

    size_t written = 0;
    for (size_t i = 0; i < count; ++i) {
      if (plan.arguments[i].isWritten && !originals[i].isNone()) {
        update(call, originals[i], converted[written++]);
      }
    }
    for (size_t i = 0; i < plan.returns.size(); ++i) {
      c10::IValue& slot = (*stack)[base + i];
      const int alias = plan.returns[i].alias;
      if (alias >= 0) {
        if (!originals[static_cast<size_t>(alias)].isNone()) {
          slot = originals[static_cast<size_t>(alias)];
        }
      } else if (slot.isTensor()) {
        slot = call.result(std::move(slot).toTensor());
      } else if (slot.isTensorList()) {
        c10::List<at::Tensor> list;
        for (at::Tensor& tensor : slot.toTensorVector()) {
          list.push_back(call.result(std::move(tensor)));
        }
        slot = std::move(list);
      }
    }
  }

 private:
  // Replaces a value by what the kernel gets; whether there was a tensor in it.  The original moves to `original`.
  static bool
  convert(InlineCall& call, OperatorPlan::ArgumentKind kind, c10::IValue& slot, c10::IValue& original) {
    using Kind = OperatorPlan::ArgumentKind;
    switch (kind) {
      case Kind::Tensor:
        if (!slot.isTensor()) {
          return false;
        }
        original = std::move(slot);
        slot = call.argument(original.toTensor());
        return true;
      case Kind::TensorList: {
        if (!slot.isTensorList()) {
          return false;
        }
        original = std::move(slot);
        c10::List<at::Tensor> list;
        const c10::List<at::Tensor> tensors = original.toTensorList();
        list.reserve(tensors.size());
        for (size_t i = 0; i < tensors.size(); ++i) {
          list.push_back(call.argument(tensors.get(i)));
        }
        slot = std::move(list);
        return true;
      }
      case Kind::OptionalTensorList: {
        if (!slot.isList()) {
          return false;
        }
        original = std::move(slot);
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : original.toOptionalTensorVector()) {
          list.push_back(
              tensor.has_value() ? std::optional<at::Tensor>(call.argument(*tensor)) : std::nullopt);
        }
        slot = std::move(list);
        return true;
      }
      case Kind::Generator:
        if (slot.isGenerator() && slot.toGenerator().defined()) {
          slot = call.argument(slot.toGenerator());
        }
        return false;
      case Kind::Device:
        if (slot.isDevice()) {
          slot = call.argument(slot.toDevice());
        }
        return false;
      case Kind::Other:
        return false;
    }
    return false;
  }

  static void update(InlineCall& call, const c10::IValue& original, const c10::IValue& converted) {
    if (original.isTensor()) {
      call.update(original.toTensor(), converted.toTensor());
    } else if (original.isTensorList()) {
      const c10::List<at::Tensor> ours = original.toTensorList();
      const c10::List<at::Tensor> delegates = converted.toTensorList();
      for (size_t i = 0; i < ours.size(); ++i) {
        call.update(ours.get(i), delegates.get(i));
      }
    }
  }

  std::shared_ptr<OperatorPlan> plan_;
};

// --- Which operators ------------------------------------------------------------------------------------------------

// Ours whatever the driver: they are about the tensor itself and not about its elements, or take streams.
constexpr std::string_view kOurs[] = {
    "aten::set_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::_resize_output_",
    "aten::record_stream",
    "aten::is_set_to",
    "aten::_has_compatible_shallow_copy_type",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_efficientzerotensor",
    "aten::_fused_sdp_choice",
    "aten::_nested_from_padded",
    "aten::_nested_tensor_from_mask",
    "aten::_nested_tensor_from_mask_left_aligned",
};
template <size_t N>
bool contains(const std::string_view (&names)[N], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool takesTensors(const OperatorPlan& plan) {
  using Kind = OperatorPlan::ArgumentKind;
  return std::any_of(
      plan.arguments.begin(), plan.arguments.end(), [](const OperatorPlan::Argument& argument) {
        return argument.kind == Kind::Tensor || argument.kind == Kind::TensorList ||
               argument.kind == Kind::OptionalTensorList;
      });
}

// Compositions that autograd differentiates through stay compositions; factories start with our empty().
bool isInline(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (contains(kOurs, op.operator_name().name) || op.hasTag(at::Tag::inplace_view)) {
    return false;
  }
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
      !(op.hasKernelForDispatchKey(DispatchKey::Autograd) &&
        op.hasKernelForDispatchKey(kernelDispatchKey()))) {
    return false;
  }
  return op.hasComputedKernelForDispatchKey(kernelDispatchKey());
}

// The dispatcher warns about every kernel that replaces another, which is the point here.
class SilentWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::shared_ptr<OperatorPlan> inlinePlan(const c10::OperatorHandle& op) {
  auto plan = std::make_shared<OperatorPlan>(op);
  return plan->isView || !takesTensors(*plan) ? nullptr : plan;
}

void registerInlineKernels() {
  if (driver().delegate() == nullptr) {
    return;
  }
  SilentWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  std::vector<std::string> done = registerUnboxedInlineKernels(*library);
  for (const auto registerMore : {registerInlineAttention, registerInlineBatchNorm}) {
    for (std::string& name : registerMore(*library)) {
      done.push_back(std::move(name));
    }
  }
  std::sort(done.begin(), done.end());
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten" || std::binary_search(done.begin(), done.end(), c10::toString(name))) {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema() || !isInline(*op)) {
      continue;
    }
    if (auto plan = inlinePlan(*op)) {
      const char* const fullName = plan->name;
      library->impl(
          fullName,
          torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedInlineKernel>(std::move(plan))));
    }
  }
}

[[maybe_unused]] const bool registered = [] {
  onInitialization(&registerInlineKernels);
  return true;
}();

} // namespace

void runInline(
    const std::shared_ptr<OperatorPlan>& plan,
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  BoxedInlineKernel kernel(plan);
  kernel(op, {}, stack);
}

} // namespace simdev
