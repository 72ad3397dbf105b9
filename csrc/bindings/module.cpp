// The extension module torch_simdev._C.  Loading the shared library registers guard, hooks, allocators and
// kernels with PyTorch; this adds what Python calls directly.  Nothing here starts a device.
#include "bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  simdev::initRuntimeBindings(m);
  simdev::initMemoryBindings(m);
  simdev::initOperatorBindings(m);
  simdev::initCompileBindings(m);
  simdev::initDelegateBindings(m);
  simdev::initGraphBindings(m);
}
