// Sparse tensors for the host fallback: their backing tensors, and the way back.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace simdev {

// Any layout but strided.
bool isSparse(const at::Tensor& tensor);
// A sparse tensor of the kernels' device over backing tensors of the parts.
at::Tensor sparseBacking(const at::Tensor& tensor);
// A sparse simdev tensor whose parts are `toDevice` of those of `tensor`.
at::Tensor sparseToDevice(
    const at::Tensor& tensor,
    const std::function<at::Tensor(const at::Tensor&)>& toDevice);
// Makes `target` what `source` is, part by part; both are simdev tensors of one layout.
void sparseAssign(const at::Tensor& target, const at::Tensor& source);

} // namespace simdev
