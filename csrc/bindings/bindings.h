// The parts of the torch_simdev._C module.  Each adds private functions; the public ones, with their checks
// and documentation, are Python (torch_simdev/).
#pragma once

#include <pybind11/pybind11.h>

namespace simdev {

void initRuntimeBindings(pybind11::module_& m); // runtime.cpp: devices, streams, generators
void initMemoryBindings(pybind11::module_& m); // memory.cpp: allocators, statistics
void initOperatorBindings(pybind11::module_& m); // operators.cpp: fallbacks, views of backing memory

} // namespace simdev
