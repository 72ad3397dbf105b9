// Python's view of delegate drivers: conversion to and from the delegate's tensors, and what the CUDA driver asks of
// torch.cuda.
#include "runtime/delegate.h"
#include "aten/inline.h"
#include "bindings/bindings.h"
#include "driver/cuda_driver.h"
#include "runtime/two_accelerators.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <vector>

namespace py = pybind11;

namespace simdev {

namespace {

// --- Conversion ---------------------------------------------------------------------------------------------------------

DelegateDriver& requiredDelegate() {
  lazyInit();
  DelegateDriver* const delegate = activeDelegate();
  TORCH_CHECK_NOT_IMPLEMENTED(
      delegate != nullptr,
      "The driver '",
      driver().name(),
      "' runs on no other device of PyTorch, so that its tensors have no backing tensors outside of its "
      "kernels. "
      "Copy with tensor.cpu(), or use SIMDEV_DRIVER=cuda.");
  return *delegate;
}

at::Tensor toBackingOne(const at::Tensor& tensor, DelegateDriver& delegate) {
  if (!tensor.defined() || !tensor.is_privateuseone()) {
    return tensor;
  }
  TORCH_CHECK(
      tensor.layout() == c10::Layout::Strided,
      "to_backing: expected a strided tensor, got ",
      tensor.layout());
  at::Tensor converted = delegateTensor(tensor, delegate);
  if (!tensor.is_inference()) { // autograd sees writes through either
    converted.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  }
  return converted;
}

at::Tensor fromBackingOne(const at::Tensor& tensor, DelegateDriver& delegate, c10::DeviceIndex index) {
  if (!tensor.defined() || tensor.device().type() != delegate.type()) {
    return tensor;
  }
  TORCH_CHECK(
      tensor.layout() == c10::Layout::Strided,
      "from_backing: expected a strided tensor, got ",
      tensor.layout());
  auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      tensor.is_inference() ? c10::VariableVersion() : tensor.unsafeGetTensorImpl()->version_counter(),
      /*allow_tensor_metadata_change=*/true);
  if (!impl->device().is_cpu()) {
    index = impl->device().index();
  }
  impl->set_storage_keep_dtype(makeShell(
      InnerStorage::reclaim_copy(tensor.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl()), index));
  impl->_change_backend_component_keys(c10::Device(kDeviceType, index));
  return at::Tensor(std::move(impl));
}

// PyTorch's autograd engine synchronises one type of accelerator in a backward pass, so that a graph cannot have both.
at::Tensor convert(const at::Tensor& tensor, bool toBacking) {
  DelegateDriver& delegate = requiredDelegate();
  TORCH_CHECK(
      !(c10::GradMode::is_enabled() && tensor.requires_grad()),
      toBacking ? "to_backing" : "from_backing",
      ": gradients do not flow between ",
      kDeviceType,
      " and ",
      delegate.type(),
      " tensors, which one backward pass cannot have both. Convert tensor.detach(), or under "
      "torch.no_grad().");
  return toBacking ? toBackingOne(tensor, delegate) : fromBackingOne(tensor, delegate, currentDevice());
}

// --- Compiled graphs ------------------------------------------------------------------------------------------------

// Borrows the objects; returns a new list.
template <typename Convert>
PyObject* convertItems(PyObject* const* items, Py_ssize_t count, Convert convert) {
  PyObject* const list = PyList_New(count);
  for (Py_ssize_t i = 0; list != nullptr && i < count; ++i) {
    PyObject* const item = items[i];
    PyObject* converted = nullptr;
    if (THPVariable_Check(item)) {
      converted = THPVariable_Wrap(convert(THPVariable_Unpack(item)));
    } else {
      Py_INCREF(item);
      converted = item;
    }
    PyList_SET_ITEM(list, i, converted);
  }
  return list;
}

// A result that nobody else holds becomes ours where it stands, which spares a tensor and a Python object.
void relabelInPlace(PyObject* item, DelegateDriver& delegate, c10::DeviceIndex index) {
  if (Py_REFCNT(item) != 1 || !THPVariable_CheckExact(item)) {
    return;
  }
  const at::Tensor& tensor = THPVariable_Unpack(item);
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (tensor.use_count() != 1 || tensor.device().type() != delegate.type() ||
      tensor.layout() != c10::Layout::Strided || tensor.requires_grad() ||
      !impl->allow_tensor_metadata_change()) {
    return;
  }
  if (!impl->device().is_cpu()) {
    index = impl->device().index();
  }
  impl->set_storage_keep_dtype(
      makeShell(InnerStorage::reclaim_copy(impl->unsafe_storage().unsafeGetStorageImpl()), index));
  impl->_change_backend_component_keys(c10::Device(kDeviceType, index));
}

PyObject* callConverted(PyObject* compiled, PyObject* arguments, DelegateDriver& delegate) {
  PyObject* const results = PyObject_CallOneArg(compiled, arguments);
  Py_DECREF(arguments);
  if (results == nullptr) {
    return nullptr;
  }
  PyObject* const sequence = PySequence_Fast(results, "a compiled graph returns a list or a tuple");
  Py_DECREF(results);
  if (sequence == nullptr) {
    return nullptr;
  }
  const c10::DeviceIndex index = currentDevice();
  if (Py_REFCNT(sequence) == 1) { // or else its items are somebody else's too
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
      relabelInPlace(PySequence_Fast_GET_ITEM(sequence, i), delegate, index);
    }
  }
  PyObject* const converted = convertItems(
      PySequence_Fast_ITEMS(sequence), PySequence_Fast_GET_SIZE(sequence), [&](const at::Tensor& tensor) {
        return fromBackingOne(tensor, delegate, index);
      });
  Py_DECREF(sequence);
  return converted;
}

// What a compiled graph of the delegate's tensors (`self`) is for ours, called with a list that it empties.
PyObject* callBoxed(PyObject* self, PyObject* list) {
  HANDLE_TH_ERRORS
  DelegateDriver& delegate = startedDelegate();
  TORCH_CHECK_TYPE(PyList_Check(list), "expected a list of arguments");
  PyObject* const arguments =
      convertItems(PySequence_Fast_ITEMS(list), PyList_GET_SIZE(list), [&](const at::Tensor& tensor) {
        return toBackingOne(tensor, delegate);
      });
  if (arguments == nullptr || PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) != 0) {
    Py_XDECREF(arguments);
    return nullptr;
  }
  return callConverted(self, arguments, delegate);
  END_HANDLE_TH_ERRORS
}

// The same for a graph that needs nothing of AOTAutograd when it is called: no gradients, no aliases.  `self` is the
// function, and what must live as long.
PyObject* callPlain(PyObject* self, PyObject* const* items, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  DelegateDriver& delegate = startedDelegate();
  const c10::AutoGradMode noGrad(false);
  const c10::impl::ExcludeDispatchKeyGuard noAutocast(c10::autocast_dispatch_keyset);
  PyObject* const arguments =
      convertItems(items, count, [&](const at::Tensor& tensor) { return toBackingOne(tensor, delegate); });
  return arguments == nullptr ? nullptr : callConverted(PyTuple_GET_ITEM(self, 0), arguments, delegate);
  END_HANDLE_TH_ERRORS
}

PyMethodDef kCallBoxed = {"relabelled", callBoxed, METH_O, nullptr};
PyMethodDef kCallPlain = {
    "relabelled",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(callPlain)),
    METH_FASTCALL,
    nullptr};

// --- torch.cuda ----------------------------------------------------------------------------------------------------------

py::module_ torchCuda() {
  return py::module_::import("torch.cuda");
}

// The caller has no way to let a Python exception pass.
template <typename Function>
auto withPython(Function function) {
  const py::gil_scoped_acquire gil;
  try {
    return function();
  } catch (py::error_already_set& error) {
    const std::string message = py::str(error.value()).cast<std::string>();
    TORCH_CHECK(false, "simdev: CUDA cannot be used: ", message);
  }
}

CudaFrontend cudaFrontend() {
  CudaFrontend frontend{};
  frontend.unavailableReason = [] {
    return withPython([] {
      const py::object reason = py::module_::import("torch_simdev.backing").attr("cuda_unavailable_reason")();
      return reason.is_none() ? std::string() : reason.cast<std::string>();
    });
  };
  frontend.deviceCount = [] {
    return withPython([] { return torchCuda().attr("device_count")().cast<int>(); });
  };
  frontend.initialize = [] { withPython([] { torchCuda().attr("init")(); }); };
  frontend.deviceProperties = [](c10::DeviceIndex device) {
    return withPython([device] {
      const py::object found = torchCuda().attr("get_device_properties")(static_cast<int>(device));
      DeviceProperties properties;
      properties.name = found.attr("name").cast<std::string>();
      properties.uuid = py::str(found.attr("uuid")).cast<std::string>();
      properties.major = found.attr("major").cast<int>();
      properties.minor = found.attr("minor").cast<int>();
      properties.multiProcessorCount = found.attr("multi_processor_count").cast<int>();
      properties.totalMemory = found.attr("total_memory").cast<size_t>();
      return properties;
    });
  };
  frontend.sleep = [](c10::DeviceIndex device, int64_t nanoseconds) {
    withPython([device, nanoseconds] {
      // In kHz, and a device runs at most at its maximum: the sleep is not shorter than asked for.
      const auto rate = py::getattr(
                            torchCuda().attr("get_device_properties")(static_cast<int>(device)),
                            "clock_rate",
                            py::int_(2000000))
                            .cast<int64_t>();
      torchCuda().attr("_sleep")(nanoseconds / 1000 * rate / 1000);
    });
  };
  frontend.canAccessPeer = [](c10::DeviceIndex device, c10::DeviceIndex peer) {
    return withPython([device, peer] {
      return device != peer &&
             torchCuda()
                 .attr("can_device_access_peer")(static_cast<int>(device), static_cast<int>(peer))
                 .cast<bool>();
    });
  };
  return frontend;
}

} // namespace

void initDelegateBindings(py::module_& m) {
  setCudaFrontend(cudaFrontend());
  // The type of device that the driver runs on, as PyTorch names it; None for a chip of its own.
  m.def("_delegate_type", [] {
    DelegateDriver* const delegate = driver().delegate();
    return delegate == nullptr
               ? py::object(py::none())
               : py::object(py::str(c10::DeviceTypeName(delegate->type(), /*lower_case=*/true)));
  });
  m.def("_relabelled_boxed", [](const py::object& compiled) {
    return py::reinterpret_steal<py::object>(PyCFunction_New(&kCallBoxed, compiled.ptr()));
  });
  m.def("_relabelled_plain", [](const py::object& compiled, const py::object& owner) {
    return py::reinterpret_steal<py::object>(
        PyCFunction_New(&kCallPlain, py::make_tuple(compiled, owner).ptr()));
  });
  m.def("_accelerator_imports", &findAcceleratorImports, py::arg("redirect"));
  m.def("_to_backing", torch::wrap_pybind_function([](const at::Tensor& tensor) {
          return convert(tensor, true);
        }));
  m.def("_from_backing", torch::wrap_pybind_function([](const at::Tensor& tensor) {
          return convert(tensor, false);
        }));
  m.def("_set_backward_accelerator", &setBackwardAccelerator);
}

} // namespace simdev
