// The driver over a CUDA device: DelegateDriver with CUDA for the device.
//
// No CUDA header and no CUDA library: the same wheel works beside a CPU build of PyTorch, where this driver only says
// that there is no GPU.  Does not live here: anything that would hold for another device (delegate_driver.cpp).
#include "csrc/driver/cuda_driver.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <string>

#include "csrc/driver/delegate_driver.h"

namespace simdev {

namespace {

// A program without Python has no other.
CudaFrontend cudaFrontend{
    .unavailableReason = [] { return std::string("the CUDA driver works in a Python process only."); },
    .deviceCount = nullptr,
    .initialize = nullptr,
    .deviceProperties = nullptr,
    .sleep = nullptr,
    .canAccessPeer = nullptr};

class CudaDriver final : public DelegateDriver {
 public:
  const char* name() const noexcept override { return "cuda"; }
  c10::DeviceType type() const noexcept override { return c10::kCUDA; }

  const c10::impl::DeviceGuardImplInterface& guard() const override {
    static const auto* const impl = c10::impl::getDeviceGuardImpl(c10::kCUDA);
    return *impl;
  }
  c10::DeviceAllocator& deviceAllocator() override { return *c10::getDeviceAllocator(c10::kCUDA); }
  at::HostAllocator* hostAllocator() override { return at::getHostAllocator(c10::kCUDA); }
  bool hasPhiloxGenerators() const noexcept override { return true; }
  void initialize() override { cudaFrontend.initialize(); }

  int deviceCount() noexcept override {
    try {
      return cudaFrontend.deviceCount();
    } catch (...) {
      return 0;
    }
  }
  DeviceProperties deviceProperties(c10::DeviceIndex device) override {
    DeviceProperties properties = cudaFrontend.deviceProperties(device);
    properties.driver = name();
    return properties;
  }
  bool canAccessPeer(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    return cudaFrontend.canAccessPeer(device, peer);
  }
  void sleep(StreamHandle handle, int64_t nanoseconds) override {
    const auto& stream = *static_cast<const c10::Stream*>(handle);
    const DelegateStreamScope scope(guard(), stream);
    cudaFrontend.sleep(stream.device_index(), nanoseconds);
  }
  // CUDA's runtime has more levels; PyTorch's pools have these.
  std::pair<int, int> streamPriorityRange() const noexcept override { return {0, -3}; }
};

} // namespace

void setCudaFrontend(const CudaFrontend& frontend) noexcept {
  cudaFrontend = frontend;
}

bool isCudaAvailable() {
  return cudaFrontend.unavailableReason().empty();
}

Driver& cudaDriver() {
  const std::string reason = cudaFrontend.unavailableReason();
  TORCH_CHECK_VALUE(
      reason.empty(), "SIMDEV_DRIVER=\"cuda\": ", reason, " SIMDEV_DRIVER=simulator runs without one.");
  static auto* const driver = new CudaDriver; // used until the very end of the process
  return *driver;
}

} // namespace simdev
