// Python's view of generated kernels: objects to call with tensors and numbers, and the allocation of their outputs.
//
// What compiled code calls for every kernel is written against CPython itself: one call costs well under a microsecond.
// Does not live here: packing and launching (compile/compiled_kernel.h).
#include "bindings/bindings.h"

#include "aten/factories.h"
#include "compile/compiled_kernel.h"
#include "runtime/device.h"

#include <c10/util/SmallVector.h>
#include <structmember.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <structmember.h>

#include <memory>

namespace py = pybind11;

namespace simdev {

namespace {

struct KernelObject {
  PyObject_HEAD;
  vectorcallfunc call;
  CompiledKernel* kernel;
  unsigned long long launches;
};

int64_t toInt64(PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (C10_UNLIKELY(value == -1 && PyErr_Occurred() != nullptr)) {
    throw python_error();
  }
  return value;
}

double toDouble(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (C10_UNLIKELY(value == -1 && PyErr_Occurred() != nullptr)) {
    throw python_error();
  }
  return value;
}

const at::Tensor& toTensor(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ", Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

PyObject* callKernel(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  auto* const object = reinterpret_cast<KernelObject*>(self);
  const CompiledKernel& kernel = *object->kernel;
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  TORCH_CHECK_TYPE(
      count == kernel.size() && names == nullptr,
      kernel.name(),
      " takes ",
      kernel.size(),
      " arguments, got ",
      count);
  CompiledKernel::Arguments packed(kernel);
  for (size_t i = 0; i < count; ++i) {
    switch (kernel.kind(i)) {
      case ArgumentKind::Tensor:
      case ArgumentKind::HostScalar:
        packed.add(toTensor(arguments[i]));
        break;
      case ArgumentKind::Int:
        packed.add(toInt64(arguments[i]));
        break;
      case ArgumentKind::Float:
        packed.add(static_cast<float>(toDouble(arguments[i])));
        break;
      case ArgumentKind::Double:
        packed.add(toDouble(arguments[i]));
        break;
      case ArgumentKind::Bool:
        packed.add(toInt64(arguments[i]) != 0);
        break;
    }
  }
  ++object->launches;
  {
    py::gil_scoped_release noGil; // the stream's queue may be full
    kernel.launch(packed);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* newKernel(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"entry", "name", "signature", nullptr};
  unsigned long long entry = 0;
  const char* name = nullptr;
  const char* signature = nullptr;
  if (!PyArg_ParseTupleAndKeywords(
          arguments, keywords, "Kss:CompiledKernel", const_cast<char**>(names), &entry, &name, &signature)) {
    return nullptr;
  }
  auto kernel = std::make_unique<CompiledKernel>(reinterpret_cast<KernelFunction>(entry), name, signature);
  auto* const object = reinterpret_cast<KernelObject*>(type->tp_alloc(type, 0));
  if (object == nullptr) {
    return nullptr;
  }
  object->call = &callKernel;
  object->kernel = kernel.release();
  object->launches = 0;
  return reinterpret_cast<PyObject*>(object);
  END_HANDLE_TH_ERRORS
}

void deleteKernel(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<KernelObject*>(self)->kernel;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* representKernel(PyObject* self) {
  const CompiledKernel& kernel = *reinterpret_cast<KernelObject*>(self)->kernel;
  return PyUnicode_FromFormat("<simdev kernel %s(%s)>", kernel.name(), kernel.signature().c_str());
}

PyObject* kernelName(PyObject* self, void*) {
  return PyUnicode_FromString(reinterpret_cast<KernelObject*>(self)->kernel->name());
}

PyObject* kernelLaunches(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<KernelObject*>(self)->launches);
}

PyObject* makeKernelType() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(KernelObject, call), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef properties[] = {
      {"name", &kernelName, nullptr, "The name shown in errors and profiles.", nullptr},
      {"launches", &kernelLaunches, nullptr, "How often the kernel was launched.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(&newKernel)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&deleteKernel)},
      {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
      {Py_tp_repr, reinterpret_cast<void*>(&representKernel)},
      {Py_tp_members, members},
      {Py_tp_getset, properties},
      {0, nullptr}};
  static PyType_Spec spec = {
      "torch_simdev._C.CompiledKernel",
      sizeof(KernelObject),
      0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
      slots};
  return PyType_FromSpec(&spec);
}

void readSizes(PyObject* tuple, c10::SmallVectorImpl<int64_t>& sizes) {
  TORCH_CHECK_TYPE(PyTuple_CheckExact(tuple), "expected a tuple of ints, got ", Py_TYPE(tuple)->tp_name);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    sizes.push_back(toInt64(PyTuple_GET_ITEM(tuple, i)));
  }
}

// empty_strided(size, stride, dtype, device index)
PyObject* allocate(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 4 && THPDtype_Check(arguments[2]), "_empty_strided takes (size, stride, dtype, device)");
  c10::SmallVector<int64_t, 8> sizes, strides;
  readSizes(arguments[0], sizes);
  readSizes(arguments[1], strides);
  const auto index = static_cast<c10::DeviceIndex>(toInt64(arguments[3]));
  const c10::ScalarType dtype = reinterpret_cast<THPDtype*>(arguments[2])->scalar_type;
  return THPVariable_Wrap(emptyStrided(sizes, strides, dtype, {kDeviceType, index}));
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"_empty_strided",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&allocate)),
     METH_FASTCALL,
     "Uninitialised memory of a device: (size, stride, dtype, device index)."},
    {nullptr, nullptr, 0, nullptr}};

} // namespace

void initCompileBindings(py::module_& m) {
  PyObject* const type = makeKernelType();
  if (type == nullptr || PyModule_AddFunctions(m.ptr(), functions) != 0) {
    throw py::error_already_set();
  }
  m.add_object("CompiledKernel", type);
  Py_DECREF(type);
}

} // namespace simdev
