// Argument checks that operators share, with CUDA's messages.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <optional>

namespace simdev {

inline bool isDefined(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

// Every defined tensor is on `device`, or a 0-dim host tensor, which stands for a number.
inline void checkSameDevice(c10::Device device, std::initializer_list<std::optional<at::Tensor>> tensors) {
  for (const std::optional<at::Tensor>& tensor : tensors) {
    TORCH_CHECK(
        !isDefined(tensor) || tensor->device() == device || (tensor->is_cpu() && tensor->dim() == 0),
        "Expected all tensors to be on the same device, but found at least two devices, ",
        device,
        " and ",
        tensor->device(),
        "!");
  }
}

} // namespace simdev
