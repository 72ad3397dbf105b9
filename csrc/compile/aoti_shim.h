// How a C function of aoti/simdev_aoti.h is written: no exception leaves it, and handles are tensors.
#pragma once

#include "compat.h"
#include "compile/aoti/simdev_aoti.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <utility>

namespace simdev::aoti {

extern thread_local std::string lastError; // what aoti_torch_simdev_error_string() tells

inline at::Tensor& tensor(AtenTensorHandle handle) noexcept {
  return *reinterpret_cast<at::Tensor*>(handle);
}
// Owned by the caller, who frees it with aoti_torch_delete_tensor_object().
inline AtenTensorHandle newHandle(at::Tensor tensor) {
  return reinterpret_cast<AtenTensorHandle>(new at::Tensor(std::move(tensor)));
}

template <typename Function>
AOTITorchError guarded(Function&& function) noexcept {
  try {
    function();
    return AOTI_TORCH_SUCCESS;
  } catch (const std::exception& error) {
    lastError = compat::message(error);
  } catch (...) {
    lastError = "unknown error";
  }
  return AOTI_TORCH_FAILURE;
}

} // namespace simdev::aoti
