// Runs the package that export_model.py has made, on simdev and without Python: `run_model model.pt2`.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <exception>
#include <vector>

namespace {

at::Tensor exampleInput(int64_t batch) {
  return at::linspace(-1, 1, batch * 64).reshape({batch, 64});
}

void run(const char* path) {
  const c10::InferenceMode guard;
  const at::Device device("simdev"); // libtorch_simdev.so has given PyTorch this name
  torch::inductor::AOTIModelPackageLoader model(path);
  for (const int64_t batch : {1, 8, 100}) {
    // run() queues the model's kernels on the current stream and returns; cpu() waits for them.
    const std::vector<at::Tensor> outputs = model.run({exampleInput(batch).to(device)});
    const at::Tensor last = outputs.at(0).select(0, batch - 1).cpu();
    std::printf("batch %d:", int(batch));
    for (int64_t i = 0; i < last.numel(); ++i) {
      std::printf(" %.5f", last[i].item<float>());
    }
    std::printf("\n");
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s model.pt2\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
