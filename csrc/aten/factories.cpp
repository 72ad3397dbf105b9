// Factory operators and the C++ allocation functions behind them.  See factories.h.
#include "aten/factories.h"

#include "runtime/device.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/Layout.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

namespace simdev {

namespace {

constexpr c10::DispatchKeySet kDispatchKeys{c10::DispatchKey::PrivateUse1};

// Memory comes from the current device, so the factory makes its device current.
class FactoryGuard {
 public:
  explicit FactoryGuard(c10::DeviceIndex device) : previous_(exchangeDevice(device)) {}
  ~FactoryGuard() { uncheckedSetDevice(previous_); }

 private:
  c10::DeviceIndex previous_;
};

// The device's allocator: ours, or a delegate driver's.
c10::Allocator* deviceAllocator() {
  lazyInit();
  return c10::GetAllocator(kDeviceType);
}

class NoMemoryAllocator final : public c10::Allocator {
 public:
  explicit NoMemoryAllocator(c10::Device device) : device_(device) {}
  c10::DataPtr allocate(size_t) override { return {nullptr, device_}; }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  c10::Device device_;
};

void checkFactoryOptions(
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pinMemory) {
  TORCH_CHECK(
      layout.value_or(c10::Layout::Strided) == c10::Layout::Strided,
      "simdev: only the strided layout is supported here, got ",
      layout.value_or(c10::Layout::Strided));
  TORCH_CHECK(
      !device.has_value() || device->type() == kDeviceType, "Expected a simdev device, got ", *device);
  TORCH_CHECK(!pinMemory.value_or(false), "Only dense CPU tensors can be pinned");
}

c10::Device factoryDevice(std::optional<c10::Device> device) {
  return {kDeviceType, device.has_value() && device->has_index() ? device->index() : currentDevice()};
}

at::Tensor withDeterministicContents(at::Tensor tensor) {
  if (C10_UNLIKELY(fillsNewMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor emptyMemoryFormat(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pinMemory,
    std::optional<c10::MemoryFormat> format) {
  checkFactoryOptions(layout, device, pinMemory);
  return withDeterministicContents(empty(
      size,
      c10::dtype_or_default(dtype),
      factoryDevice(device),
      format.value_or(c10::MemoryFormat::Contiguous)));
}

at::Tensor emptyStridedOperator(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pinMemory) {
  checkFactoryOptions(layout, device, pinMemory);
  return withDeterministicContents(
      emptyStrided(size, stride, c10::dtype_or_default(dtype), factoryDevice(device)));
}

// No memory at all: forward-mode AD uses it for tangents known to be zero.
at::Tensor efficientZeroTensor(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pinMemory) {
  checkFactoryOptions(layout, device, pinMemory);
  NoMemoryAllocator nothing(factoryDevice(device));
  return at::detail::empty_generic(
      size,
      &nothing,
      kDispatchKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
      c10::dtype_or_default(dtype),
      std::nullopt);
}

} // namespace

bool fillsNewMemory() {
  return at::globalContext().deterministicAlgorithms() &&
         at::globalContext().deterministicFillUninitializedMemory();
}

at::Tensor
emptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::Device device) {
  FactoryGuard guard(device.index());
  return at::detail::empty_strided_generic(sizes, strides, deviceAllocator(), kDispatchKeys, dtype);
}

at::Tensor
empty(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device, c10::MemoryFormat format) {
  FactoryGuard guard(device.index());
  return at::detail::empty_generic(sizes, deviceAllocator(), kDispatchKeys, dtype, format);
}

at::Tensor emptyLike(const at::Tensor& self, std::optional<c10::ScalarType> dtype) {
  const c10::ScalarType type = dtype.value_or(self.scalar_type());
  return self.is_non_overlapping_and_dense()
             ? emptyStrided(self.sizes(), self.strides(), type, self.device())
             : empty(self.sizes(), type, self.device(), self.suggest_memory_format());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(emptyMemoryFormat));
  m.impl("empty_strided", TORCH_FN(emptyStridedOperator));
  m.impl("_efficientzerotensor", TORCH_FN(efficientZeroTensor));
}

} // namespace simdev
