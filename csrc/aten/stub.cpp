// The stub tier: ATen does everything on the host (broadcasting, type promotion, allocation, the loop's plan), and calls the
// device's entry of a DispatchStub with the finished TensorIterator.
//
// It is the least work for an operator that ATen defines over a stub: register ATen's own function for the operator, and a
// loop for the stub.
#include "aten/launch.h"

#include <ATen/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/angle.h>
#include <ATen/ops/angle_native.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_not_native.h>
#include <torch/library.h>

namespace simdev {

namespace {

// The loop that a chip would have for the stub; here ATen's kernel over backing tensors is it.
using UnaryOut = at::Tensor& (*)(at::Tensor& out, const at::Tensor& self);

template <UnaryOut kernel, const char* name>
void launchUnary(at::TensorIteratorBase& iterator) {
  if (iterator.numel() > 0) {
    const at::Tensor& out = iterator.tensor(0);
    const at::Tensor& in = iterator.tensor(1);
    launch(
        out.device(),
        name,
        [out = backing(out), in = backing(in)]() mutable { kernel(out, in); },
        isLarge(in));
  }
}

} // namespace

} // namespace simdev

namespace at::native {

static constexpr char kAbs[] = "aten::abs.out";
static constexpr char kAngle[] = "aten::angle.out";
static constexpr char kLogicalNot[] = "aten::logical_not.out";

REGISTER_PRIVATEUSE1_DISPATCH(abs_stub, (&simdev::launchUnary<at::abs_out, kAbs>))
REGISTER_PRIVATEUSE1_DISPATCH(angle_stub, (&simdev::launchUnary<at::angle_out, kAngle>))
REGISTER_PRIVATEUSE1_DISPATCH(logical_not_stub, (&simdev::launchUnary<at::logical_not_out, kLogicalNot>))

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("abs.out", TORCH_FN(abs_out));
  m.impl("angle", TORCH_FN(angle));
  m.impl("angle.out", TORCH_FN(angle_out));
  m.impl("logical_not.out", TORCH_FN(logical_not_out));
}

} // namespace at::native
