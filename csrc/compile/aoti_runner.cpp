// Runs ahead-of-time packages for simdev: what AOTIModelPackageLoader, and with it
// torch._inductor.aoti_load_package, creates for a package whose device is ours.
#include "runtime/device.h"
#include "runtime/stream.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <memory>
#include <string>
#include <vector>

namespace simdev {

namespace {

class ModelRunner final : public torch::inductor::AOTIModelContainerRunner {
 public:
  ModelRunner(
      const std::string& library,
      size_t models,
      c10::DeviceIndex device,
      const std::string& folder,
      bool singleThreaded)
      // Inside of a package the device goes by CUDA's name (aoti/cuda_runtime_api.h).
      : AOTIModelContainerRunner(
            library,
            models,
            "cuda:" + std::to_string(int(device)),
            folder,
            singleThreaded),
        device_(device) {}

  // The base class unloads the library, whose kernels may still be queued.
  ~ModelRunner() override {
    try {
      driver().synchronizeDevice(device_);
    } catch (const std::exception& error) {
      TORCH_WARN("a model was unloaded after an error on its device: ", error.what());
    }
  }

 protected:
  std::vector<at::Tensor> run_impl(std::vector<AtenTensorHandle>& inputs, void* stream) override {
    const c10::DeviceGuard guard(c10::Device(kDeviceType, device_));
    return AOTIModelContainerRunner::run_impl(
        inputs, stream != nullptr ? stream : currentStreamHandle(device_));
  }

 private:
  c10::DeviceIndex device_;
};

std::unique_ptr<torch::inductor::AOTIModelContainerRunner> createModelRunner(
    const std::string& library,
    size_t models,
    const std::string& deviceName,
    const std::string& folder,
    bool singleThreaded) {
  const c10::Device named(deviceName);
  const c10::Device device(kDeviceType, named.has_index() ? named.index() : currentDevice());
  checkDeviceIndex(device.index());
  lazyInit();
  const c10::DeviceGuard guard(device); // the package makes its device current
  return std::make_unique<ModelRunner>(library, models, device.index(), folder, singleThreaded);
}

const torch::inductor::RegisterAOTIModelRunner registered("simdev", &createModelRunner);

} // namespace

} // namespace simdev
