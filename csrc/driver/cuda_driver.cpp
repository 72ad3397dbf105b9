// The driver over a CUDA device: DelegateDriver with CUDA for the device.
//
// No CUDA header and no CUDA library: the same wheel works beside a CPU build of PyTorch, where this driver only says
// that there is no GPU.  Does not live here: anything that would hold for another device (delegate_driver.cpp).
#include "csrc/driver/cuda_driver.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include "csrc/driver/delegate_driver.h"

namespace simdev {

namespace {

CudaFrontend cudaFrontend{};

bool isCudaBuild() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA);
}

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
  return isCudaBuild() && cudaFrontend.deviceCount() > 0;
}

Driver& cudaDriver() {
  TORCH_CHECK_VALUE(
      isCudaBuild(),
      "SIMDEV_DRIVER=\"cuda\": this PyTorch (",
      SIMDEV_TORCH_VERSION,
      ") was built without CUDA. Install a CUDA build of it, "
      "or use SIMDEV_DRIVER=simulator.");
  TORCH_CHECK_VALUE(
      cudaFrontend.deviceCount() > 0,
      "SIMDEV_DRIVER=\"cuda\": no NVIDIA GPU is visible to this process (see nvidia-smi, and "
      "CUDA_VISIBLE_DEVICES). Use "
      "SIMDEV_DRIVER=simulator to run without one.");
  static auto* const driver = new CudaDriver; // used until the very end of the process
  return *driver;
}

} // namespace simdev
