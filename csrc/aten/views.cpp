// Operators that change how a tensor looks at its storage: views, set_ and resize_.  Metadata only: none copies elements,
// except that growing a storage moves its bytes.
//
// ATen's view functions work for any tensor with a storage; those not listed here are compositions of these.
#include "aten/views.h"

#include "aten/factories.h"
#include "runtime/device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_resize_output_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace simdev {

namespace {

// Gives the tensor new sizes and strides, growing its storage where they need more.
void resizeTo(c10::TensorImpl* self, c10::IntArrayRef size, at::OptionalIntArrayRef stride) {
  if (self->sizes() == size && (!stride.has_value() || self->strides() == *stride)) {
    return;
  }
  const size_t itemsize = self->dtype().itemsize();
  const size_t offset = static_cast<size_t>(self->storage_offset());
  size_t bytes = 0;
  if (stride.has_value()) {
    bytes = at::detail::computeStorageNbytes(size, *stride, itemsize, offset);
    self->set_sizes_and_strides(size, *stride);
  } else {
    bytes = at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
    self->set_sizes_contiguous(size);
  }
  if (self->numel() > 0 && bytes > self->unsafe_storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self->unsafe_storage(), bytes);
  }
}

const at::Tensor&
resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  for (int64_t extent : size) {
    TORCH_CHECK(extent >= 0, "Trying to create tensor with negative dimension ", extent, ": ", size);
  }
  c10::DeviceGuard guard(self.device());
  const size_t bytesBefore = self.storage().nbytes();
  resizeTo(self.unsafeGetTensorImpl(), size, std::nullopt);
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  if (C10_UNLIKELY(fillsNewMemory())) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(bytesBefore));
  }
  return self;
}

at::Tensor& setStorage(
    at::Tensor& self,
    at::Storage source,
    int64_t offset,
    c10::IntArrayRef size,
    c10::IntArrayRef stride) {
  c10::DeviceGuard guard(self.device());
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resizeTo(
      self.unsafeGetTensorImpl(),
      size,
      stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

at::Tensor& setEmpty(at::Tensor& self) {
  c10::DeviceGuard guard(self.device());
  at::Storage storage(at::Storage::use_byte_size_t(), 0, c10::GetAllocator(kDeviceType), /*resizable=*/true);
  return setStorage(self, std::move(storage), 0, {0}, {});
}

} // namespace

void resizeStrided(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::DeviceGuard guard(tensor.device());
  resizeTo(tensor.unsafeGetTensorImpl(), sizes, strides);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("view.dtype", TORCH_FN(at::native::view_dtype));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("_resize_output_", TORCH_FN(at::native::_resize_output_));
  m.impl("set_", TORCH_FN(setEmpty));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(setStorage));
}

} // namespace simdev
