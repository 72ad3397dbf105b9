// Copies: between any dtypes, strides and offsets, on one device, between devices, and to and from the host.
//
// The rules of non_blocking are CUDA's: host memory that is pinned is read and written asynchronously, and only then
// does non_blocking mean anything; a blocking copy has finished, as far as the host can tell, when it returns.
#include "aten/backing.h"
#include "aten/factories.h"
#include "aten/launch.h"
#include "driver/driver.h"
#include "runtime/event.h"
#include "runtime/stream.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace simdev {

namespace {

bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Whether the elements of both lie in the same order without gaps, so that copying bytes copies the tensor.
bool isByteCopy(const at::Tensor& dst, const at::Tensor& src) {
  return dst.scalar_type() == src.scalar_type() && sameBits(dst, src) && dst.sizes() == src.sizes() &&
         ((dst.is_contiguous() && src.is_contiguous()) ||
          (dst.strides() == src.strides() && dst.is_non_overlapping_and_dense()));
}

void copyOnDevice(const at::Tensor& dst, const at::Tensor& src) {
  if (isByteCopy(dst, src)) {
    if (dst.data_ptr() != src.data_ptr()) {
      driver().memcpyAsync(
          dst.mutable_data_ptr(),
          src.const_data_ptr(),
          dst.nbytes(),
          MemcpyKind::DeviceToDevice,
          currentStreamHandle(dst.device().index()));
    }
    return;
  }
  launch(
      dst.device(),
      "aten::copy_",
      [dst = backing(dst), src = backing(src)] { dst.copy_(src); },
      isLarge(dst));
}

// A tensor that holds src's values in dst's dtype and layout, without conjugate or negative bits, on src's device.
at::Tensor convertFor(const at::Tensor& dst, const at::Tensor& src) {
  at::Tensor converted =
      src.is_privateuseone()
          ? emptyLike(dst.device() == src.device() ? dst : src, dst.scalar_type())
          : at::empty(src.sizes(), src.options().dtype(dst.scalar_type()).pinned_memory(false));
  converted.copy_(src);
  return converted;
}

void copyBetweenDevices(const at::Tensor& dst, const at::Tensor& src) {
  const c10::DeviceIndex from = src.device().index();
  const c10::DeviceIndex to = dst.device().index();
  if (!isByteCopy(dst, src)) {
    // Convert where the data is, move, and spread it where it goes.
    at::Tensor packed = empty(src.sizes(), dst.scalar_type(), src.device());
    copyOnDevice(packed, src);
    at::Tensor moved = empty(src.sizes(), dst.scalar_type(), dst.device());
    copyBetweenDevices(moved, packed);
    c10::DeviceGuard guard(dst.device());
    copyOnDevice(dst, moved);
    return;
  }
  // The copy runs on the source's stream; it waits for what the destination's stream has to do with dst, and later work
  // there waits for it.
  const Stream source = getCurrentStream(from);
  const Stream destination = getCurrentStream(to);
  Event ready;
  ready.record(destination);
  ready.block(source);
  driver().memcpyAsync(
      dst.mutable_data_ptr(),
      src.const_data_ptr(),
      dst.nbytes(),
      MemcpyKind::DeviceToDevice,
      source.handle());
  Event done;
  done.record(source);
  done.block(destination);
}

// Copies bytes between the host and the current stream of a device, as `nonBlocking` asks.
void copyHostBytes(const at::Tensor& dst, const at::Tensor& src, bool nonBlocking) {
  const bool toDevice = dst.is_privateuseone();
  const at::Tensor& host = toDevice ? src : dst;
  const c10::DeviceIndex device = (toDevice ? dst : src).device().index();
  const Stream stream = getCurrentStream(device);
  driver().memcpyAsync(
      dst.mutable_data_ptr(),
      src.const_data_ptr(),
      dst.nbytes(),
      toDevice ? MemcpyKind::HostToDevice : MemcpyKind::DeviceToHost,
      stream.handle());
  if (!host.is_pinned()) {
    return; // pageable memory is done with when the driver returns
  }
  if (nonBlocking) {
    at::getHostAllocator(kDeviceType)
        ->record_event(
            host.storage().mutable_data(), host.storage().data_ptr().get_context(), stream.unwrap());
  } else {
    stream.synchronize();
  }
}

void copyHostToDevice(const at::Tensor& dst, const at::Tensor& src, bool nonBlocking) {
  if (isByteCopy(dst, src)) {
    copyHostBytes(dst, src, nonBlocking);
    return;
  }
  const bool hostReady =
      src.scalar_type() == dst.scalar_type() && src.is_contiguous() && !src.is_conj() && !src.is_neg();
  const at::Tensor packed = hostReady ? src : convertFor(dst, src).contiguous();
  const at::Tensor moved = empty(packed.sizes(), packed.scalar_type(), dst.device());
  copyHostBytes(moved, packed, hostReady && nonBlocking);
  copyOnDevice(dst, moved);
}

void copyDeviceToHost(const at::Tensor& dst, const at::Tensor& src, bool nonBlocking) {
  if (isByteCopy(dst, src)) {
    copyHostBytes(dst, src, nonBlocking);
    return;
  }
  const bool deviceReady =
      src.scalar_type() == dst.scalar_type() && src.is_contiguous() && !src.is_conj() && !src.is_neg();
  at::Tensor packed = src;
  if (!deviceReady) {
    packed = empty(src.sizes(), dst.scalar_type(), src.device());
    copyOnDevice(packed, src);
  }
  if (dst.is_contiguous() && !dst.is_conj() && !dst.is_neg()) {
    copyHostBytes(dst, packed, nonBlocking);
    return;
  }
  const at::Tensor moved = at::empty(packed.sizes(), dst.options().pinned_memory(false));
  copyHostBytes(moved, packed, /*nonBlocking=*/false);
  dst.copy_(moved);
}

void copyTo(const at::Tensor& dst, const at::Tensor& source, bool nonBlocking) {
  TORCH_CHECK(
      dst.is_privateuseone() || dst.is_cpu(),
      "simdev tensors cannot be copied to ",
      dst.device(),
      "; copy to the CPU first");
  TORCH_CHECK(
      source.is_privateuseone() || source.is_cpu(),
      "tensors of ",
      source.device(),
      " cannot be copied to simdev; copy to the CPU first");
  const at::Tensor src = source.sizes() == dst.sizes() ? source : source.expand_as(dst);
  if (dst.numel() == 0 || dst.is_same(src)) {
    return;
  }
  c10::DeviceGuard guard(dst.is_privateuseone() ? dst.device() : src.device());
  if (!src.is_privateuseone()) {
    copyHostToDevice(dst, src, nonBlocking);
  } else if (!dst.is_privateuseone()) {
    copyDeviceToHost(dst, src, nonBlocking);
  } else if (dst.device() == src.device()) {
    copyOnDevice(dst, src);
  } else {
    copyBetweenDevices(dst, src);
  }
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& src, bool nonBlocking) {
  copyTo(self, src, nonBlocking);
  return self;
}

at::Tensor copyFrom(const at::Tensor& self, const at::Tensor& dst, bool nonBlocking) {
  copyTo(dst, self, nonBlocking);
  return dst;
}

at::Tensor copyFromAndResize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  copyTo(dst, self, /*nonBlocking=*/false);
  return dst;
}

// item(): one element, by value.  The copy to pageable memory waits for it.
at::Scalar localScalarDense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() >= 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  at::Tensor host = at::detail::empty_cpu({}, self.scalar_type());
  driver().memcpyAsync(
      host.mutable_data_ptr(),
      self.const_data_ptr(),
      self.itemsize(),
      MemcpyKind::DeviceToHost,
      currentStreamHandle(self.device().index()));
  return at::native::_local_scalar_dense_cpu(host);
}

void recordStream(at::Tensor& self, c10::Stream stream) {
  c10::getDeviceAllocator(kDeviceType)->recordStream(self.storage().data_ptr(), stream);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copy));
  m.impl("_copy_from", TORCH_FN(copyFrom));
  m.impl("_copy_from_and_resize", TORCH_FN(copyFromAndResize));
  m.impl("_local_scalar_dense", TORCH_FN(localScalarDense));
  m.impl("record_stream", TORCH_FN(recordStream));
}

} // namespace simdev
