// Packing a generated kernel's arguments and launching it.  See compiled_kernel.h.
#include "compile/compiled_kernel.h"

#include "runtime/device.h"
#include "runtime/stream.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <unordered_set>

namespace simdev {

namespace {

// Kernels of one name share it, so that compiling again and again does not leak more than the distinct names.
const char* intern(const std::string& name) {
  static std::mutex lock;
  static auto* const names = new std::unordered_set<std::string>; // outlives every stream
  const std::lock_guard guard(lock);
  return names->insert(name).first->c_str();
}

} // namespace

CompiledKernel::CompiledKernel(KernelFunction entry, const std::string& name, std::string_view signature)
    : entry_(entry), name_(intern(name)) {
  for (const char letter : signature) {
    TORCH_CHECK_VALUE(
        std::string_view("thifdb").find(letter) != std::string_view::npos,
        "'",
        letter,
        "' names no kind of kernel argument");
    kinds_.push_back(static_cast<ArgumentKind>(letter));
  }
}

std::string CompiledKernel::signature() const {
  std::string letters;
  for (const ArgumentKind kind : kinds_) {
    letters += static_cast<char>(kind);
  }
  return letters;
}

void CompiledKernel::Arguments::add(const at::Tensor& tensor) {
  const size_t index = next_++;
  const c10::Device device = tensor.device();
  if (kernel_.kind(index) == ArgumentKind::HostScalar) {
    TORCH_CHECK_TYPE(
        device.is_cpu() && tensor.numel() == 1,
        kernel_.name(),
        ": argument ",
        index,
        " must be a host tensor of one element, not one of ",
        tensor.numel(),
        " on ",
        device);
    slots_[index] = slots_.size() * sizeof(uint64_t);
    slots_.resize(slots_.size() + (tensor.itemsize() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    std::memcpy(
        reinterpret_cast<unsigned char*>(slots_.data()) + slots_[index],
        tensor.const_data_ptr(),
        tensor.itemsize());
    return;
  }
  TORCH_CHECK_TYPE(
      device.type() == kDeviceType,
      kernel_.name(),
      ": argument ",
      index,
      " must be on simdev, not on ",
      device);
  if (device_ != device.index()) {
    TORCH_CHECK_TYPE(
        device_ < 0,
        kernel_.name(),
        ": arguments are on devices ",
        int(device_),
        " and ",
        int(device.index()));
    device_ = device.index();
  }
  void* const pointer = tensor.data_ptr();
  slots_[index] =
      reinterpret_cast<uintptr_t>(pointer == nullptr ? nullptr : driver().kernelPointer(device_, pointer));
}

void CompiledKernel::launch(const Arguments& arguments) const {
  RECORD_FUNCTION(name_, c10::ArrayRef<const c10::IValue>()); // torch.profiler shows the launch
  TORCH_CHECK_TYPE(
      arguments.next_ == size(), name_, ": got ", arguments.next_, " arguments in place of ", size());
  const c10::DeviceIndex device = arguments.device_ < 0 ? currentDevice() : arguments.device_;
  driver().launchKernel(
      currentStreamHandle(device),
      name_,
      entry_,
      /*grid=*/1,
      arguments.slots_.data(),
      arguments.slots_.size() * sizeof(uint64_t));
}

} // namespace simdev
