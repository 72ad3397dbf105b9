// Sparse tensors: COO, and the compressed layouts CSR, CSC, BSR and BSC.
//
// A sparse simdev tensor is a handful of dense simdev tensors (indices, values) and metadata.  What only reads or replaces
// those is ATen's own function.  How many elements a sparse operator returns depends on data, so operators that
// compute synchronise: they run over backing tensors of the parts (no copy), and what they return is brought back.
#include "aten/sparse.h"

#include "aten/backing.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_broadcast_to_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/permute_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

namespace simdev {

namespace {

// A compressed tensor of any device from its parts; ATen's constructors know only the devices in the tree.
at::Tensor makeCompressed(
    c10::DispatchKey key,
    const at::Tensor& compressed,
    const at::Tensor& plain,
    const at::Tensor& values,
    c10::IntArrayRef sizes,
    c10::Layout layout) {
  at::Tensor tensor = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      c10::DispatchKeySet(key), values.device(), layout, values.dtype());
  static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl())
      ->set_member_tensors(compressed, plain, values, sizes);
  return tensor;
}

// Rebuilds `tensor` with each of its dense parts replaced by `convert(part)`.
template <typename Convert>
at::Tensor rebuild(const at::Tensor& tensor, bool onDevice, Convert convert) {
  const bool onCpu = kernelDispatchKey() == c10::DispatchKey::CPU;
  if (tensor.layout() == c10::Layout::Sparse) {
    const auto* impl = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    const at::Tensor indices = convert(impl->indices());
    const at::Tensor values = convert(impl->values());
    at::Tensor result = at::detail::make_tensor<at::SparseTensorImpl>(
        c10::DispatchKeySet(
            onDevice ? c10::DispatchKey::SparsePrivateUse1
            : onCpu  ? c10::DispatchKey::SparseCPU
                     : c10::DispatchKey::SparseCUDA),
        values.dtype());
    auto* built = static_cast<at::SparseTensorImpl*>(result.unsafeGetTensorImpl());
    built->resize_(impl->sparse_dim(), impl->dense_dim(), impl->sizes());
    built->set_indices_and_values_unsafe(indices, values);
    built->set_coalesced(impl->coalesced());
    return result;
  }
  const auto* impl = static_cast<const at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
  return makeCompressed(
      onDevice ? c10::DispatchKey::SparseCsrPrivateUse1
      : onCpu  ? c10::DispatchKey::SparseCsrCPU
               : c10::DispatchKey::SparseCsrCUDA,
      convert(impl->compressed_indices()),
      convert(impl->plain_indices()),
      convert(impl->values()),
      impl->sizes(),
      impl->layout());
}

at::Tensor makeCompressedOperator(
    const at::Tensor& compressed,
    const at::Tensor& plain,
    const at::Tensor& values,
    c10::IntArrayRef size,
    std::optional<c10::ScalarType>,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device>,
    std::optional<bool>) {
  TORCH_CHECK(
      layout.has_value(), "sparse_compressed_tensor_unsafe expected a sparse compressed layout but got none");
  return makeCompressed(c10::DispatchKey::SparseCsrPrivateUse1, compressed, plain, values, size, *layout);
}

} // namespace

bool isSparse(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() != c10::Layout::Strided;
}

at::Tensor sparseBacking(const at::Tensor& tensor) {
  return rebuild(tensor, /*onDevice=*/false, [](const at::Tensor& part) { return backing(part); });
}

at::Tensor sparseToDevice(
    const at::Tensor& tensor,
    const std::function<at::Tensor(const at::Tensor&)>& toDevice) {
  return rebuild(tensor, /*onDevice=*/true, toDevice);
}

void sparseAssign(const at::Tensor& target, const at::Tensor& source) {
  if (target.layout() == c10::Layout::Sparse) {
    auto* to = static_cast<at::SparseTensorImpl*>(target.unsafeGetTensorImpl());
    const auto* from = static_cast<const at::SparseTensorImpl*>(source.unsafeGetTensorImpl());
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
    to->set_indices_and_values_unsafe(from->indices(), from->values());
    to->set_coalesced(from->coalesced());
    return;
  }
  const auto* from = static_cast<const at::SparseCsrTensorImpl*>(source.unsafeGetTensorImpl());
  static_cast<at::SparseCsrTensorImpl*>(target.unsafeGetTensorImpl())
      ->set_member_tensors(from->compressed_indices(), from->plain_indices(), from->values(), from->sizes());
}

// By metadata alone, on any device.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl(
      "_sparse_coo_tensor_with_dims_and_tensors",
      TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("clone", TORCH_FN(at::native::clone_sparse));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
  m.impl("permute", TORCH_FN(at::native::permute_sparse_coo));
  m.impl("unsqueeze", TORCH_FN(at::native::unsqueeze_sparse));
  m.impl("_sparse_broadcast_to", TORCH_FN(at::native::sparse_broadcast_to));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("select.int", TORCH_FN(at::native::select_sparse_csr));
  m.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed));
  m.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_compressed_));
  m.impl("resize_", TORCH_FN(at::native::resize_sparse_csr_));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_sparse_compressed_tensor_unsafe", TORCH_FN(makeCompressedOperator));
}

} // namespace simdev
