// Precompiled header of csrc/bindings: pybind11 and PyTorch's Python headers.
//
// Only a matter of build time: each file still includes what it uses, and SIMDEV_PCH=0 builds without this.
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>
