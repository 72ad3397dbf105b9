// Reading operators' schemas and converting their arguments.  See plan.h.
#include "aten/plan.h"

#include "aten/backing.h"
#include "aten/inference.h"
#include "aten/kernel_scope.h"
#include "aten/random.h"
#include "aten/sparse.h"
#include "driver/driver.h"
#include "runtime/delegate.h"
#include "runtime/device.h"

#include <ATen/core/List.h>
#include <ATen/ops/_to_copy.h>

#include <cstring>
#include <utility>

namespace simdev {

namespace {

bool isTensorType(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType;
}

bool isTensorListType(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::ListType &&
         isTensorType(type->castRaw<c10::ListType>()->getElementType());
}

OperatorPlan::ArgumentKind kindOf(const c10::TypePtr& type) {
  using Kind = OperatorPlan::ArgumentKind;
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return Kind::Tensor;
    case c10::TypeKind::GeneratorType:
      return Kind::Generator;
    case c10::TypeKind::DeviceObjType:
      return Kind::Device;
    case c10::TypeKind::OptionalType:
      return kindOf(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: {
      const c10::TypePtr& element = type->castRaw<c10::ListType>()->getElementType();
      if (isTensorType(element)) {
        return Kind::TensorList;
      }
      if (element->kind() == c10::TypeKind::OptionalType && kindOf(element) == Kind::Tensor) {
        return Kind::OptionalTensorList;
      }
      return Kind::Other;
    }
    default:
      return Kind::Other;
  }
}

bool isTensorList(OperatorPlan::ArgumentKind kind) {
  using Kind = OperatorPlan::ArgumentKind;
  return kind == Kind::TensorList || kind == Kind::OptionalTensorList;
}

// Calls `visit` with every defined tensor and whether it stands alone (not in a list).
template <typename Visit>
void forEachTensor(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, Visit visit) {
  using Kind = OperatorPlan::ArgumentKind;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (plan.arguments[i].kind == Kind::Tensor) {
      if (value.isTensor() && value.toTensor().defined()) {
        visit(value.toTensor(), true);
      }
    } else if (isTensorList(plan.arguments[i].kind) && value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) {
          visit(element.toTensor(), false);
        }
      }
    }
  }
}

at::Tensor kernelTensor(
    const OperatorPlan& plan,
    const at::Tensor& tensor,
    c10::Device device,
    BackingStorages& storages) {
  if (plan.takesHostTensors && tensor.defined() && tensor.is_cpu() && tensor.dim() > 0) {
    return backing(tensor.to(device), storages);
  }
  return backing(tensor, storages);
}

c10::Device kernelDevice(c10::Device device) {
  DelegateDriver* const delegate = activeDelegate();
  return delegate == nullptr ? c10::Device(driver().kernelDeviceType()) : delegate->device(device.index());
}

} // namespace

OperatorPlan::OperatorPlan(const c10::OperatorHandle& handle)
    : op(handle),
      name(strdup(c10::toString(handle.operator_name()).c_str())),
      inferences(std::make_unique<InferenceCache>()) {
  const c10::FunctionSchema& schema = handle.schema();
  for (const c10::Argument& argument : schema.arguments()) {
    const bool out = argument.is_out();
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    arguments.push_back({kindOf(argument.type()), written, out});
    hasOutArguments |= out;
  }
  for (const c10::Argument& result : schema.returns()) {
    Return entry{-1, isTensorType(result.type()), isTensorListType(result.type())};
    if (const c10::AliasInfo* alias = result.alias_info()) {
      isView |= !alias->isWrite();
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const c10::AliasInfo* other = schema.arguments()[i].alias_info();
        if (other != nullptr && other->beforeSets() == alias->beforeSets()) {
          entry.alias = static_cast<int>(i);
        }
      }
    }
    hasFreshOutputs |= entry.alias < 0;
    returnsOnlyTensors &= entry.alias >= 0 || entry.isTensor || entry.isList;
    returns.push_back(entry);
  }
}

OperatorPlan::~OperatorPlan() = default;

c10::Device operatorDevice(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> found;
  forEachTensor(plan, arguments, [&](const at::Tensor& tensor, bool) {
    if (!found.has_value() && tensor.is_privateuseone()) {
      found = tensor.device();
    }
  });
  if (!found.has_value()) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (plan.arguments[i].kind == OperatorPlan::ArgumentKind::Device && arguments[i].isDevice()) {
        return {kDeviceType, resolveDeviceIndex(arguments[i].toDevice().index())};
      }
    }
    return {kDeviceType, currentDevice()};
  }
  forEachTensor(plan, arguments, [&](const at::Tensor& tensor, bool alone) {
    const bool hostScalar =
        tensor.is_cpu() &&
        (plan.takesHostTensors || (tensor.dim() == 0 && (alone || plan.takesHostScalarsInLists)));
    TORCH_CHECK(
        tensor.device() == *found || hostScalar,
        "Expected all tensors to be on the same device, but found at least two devices, ",
        *found,
        " and ",
        tensor.device(),
        "! (when checking arguments of ",
        plan.name,
        ")");
  });
  return *found;
}

torch::jit::Stack
kernelArguments(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, c10::Device device) {
  using Kind = OperatorPlan::ArgumentKind;
  BackingStorages storages;
  torch::jit::Stack stack;
  stack.reserve(arguments.size() + 1);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    switch (plan.arguments[i].kind) {
      case Kind::Tensor:
        stack.push_back(
            value.isTensor() ? c10::IValue(kernelTensor(plan, value.toTensor(), device, storages)) : value);
        break;
      case Kind::TensorList: {
        if (!value.isTensorList()) {
          stack.push_back(value);
          break;
        }
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorList().vec()) {
          list.push_back(kernelTensor(plan, tensor, device, storages));
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case Kind::OptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
          list.push_back(
              tensor.has_value() ? std::optional<at::Tensor>(kernelTensor(plan, *tensor, device, storages))
                                 : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case Kind::Generator:
        stack.emplace_back(); // of KernelGenerator
        break;
      case Kind::Device:
        stack.push_back(value.isDevice() ? c10::IValue(kernelDevice(device)) : value);
        break;
      case Kind::Other:
        stack.push_back(value);
        break;
    }
  }
  return stack;
}

KernelGenerator::KernelGenerator(
    const OperatorPlan& plan,
    c10::ArrayRef<c10::IValue> arguments,
    c10::Device device)
    : index_(
          std::ranges::find(
              plan.arguments,
              OperatorPlan::ArgumentKind::Generator,
              &OperatorPlan::Argument::kind) -
          plan.arguments.begin()),
      device_(device.index()) {
  if (index_ == plan.arguments.size()) {
    return;
  }
  int64_t count = 1;
  forEachTensor(
      plan, arguments, [&](const at::Tensor& tensor, bool) { count = std::max(count, tensor.numel()); });
  state_ = getGeneratorOrDefault(arguments[index_].toOptional<at::Generator>(), device_)
               .reserve(static_cast<uint64_t>(count));
}

void KernelGenerator::place(torch::jit::Stack& kernelArguments) const {
  if (index_ < kernelArguments.size()) {
    kernelArguments[index_] = kernelGenerator(state_, device_);
  }
}

bool isLarge(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments) {
  if (plan.isMatrixProduct) {
    const at::Tensor* factors[2] = {nullptr, nullptr};
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].isTensor() && !plan.arguments[i].isOut) {
        factors[0] = std::exchange(factors[1], &arguments[i].toTensor());
      }
    }
    return factors[0]->numel() * factors[1]->size(-1) >= kParallelMultiplications;
  }
  size_t largest = 0;
  forEachTensor(plan, arguments, [&](const at::Tensor& tensor, bool) {
    if (!isSparse(tensor)) {
      largest = std::max(largest, static_cast<size_t>(tensor.numel()) * tensor.itemsize());
    }
  });
  return largest >= (plan.computeBound ? kParallelBytesOfComputeBound : kParallelBytes);
}

void freshTensors(
    const OperatorPlan& plan,
    c10::ArrayRef<c10::IValue> results,
    std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < plan.returns.size(); ++i) {
    if (plan.returns[i].alias >= 0) {
      continue;
    }
    if (plan.returns[i].isList) {
      for (const at::Tensor& tensor : results[i].toTensorList().vec()) {
        tensors.push_back(tensor);
      }
    } else {
      tensors.push_back(results[i].isTensor() ? results[i].toTensor() : at::Tensor());
    }
  }
}

} // namespace simdev
