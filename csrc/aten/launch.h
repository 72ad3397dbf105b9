// Launching work on a tensor's device: the one way in which operators reach a stream.
//
// `launch` takes a closure over backing tensors that calls ATen; it runs once, in order, on the current stream of
// the device.  `launchKernel` (native kernels) is in native/.  Neither blocks, and neither copies data to the host.
#pragma once

#include "aten/backing.h"
#include "aten/kernel_threads.h"
#include "driver/driver.h"
#include "runtime/stream.h"

#include <type_traits>
#include <utility>

namespace simdev {

template <typename Function>
class ClosureTask final : public Task {
 public:
  ClosureTask(const char* name, Function function, bool parallel)
      : name_(name), function_(std::move(function)), parallel_(parallel) {}
  void run() override {
    KernelDispatchGuard guard;
    setKernelParallelism(parallel_);
    function_();
  }
  const char* name() const noexcept override { return name_; }

 private:
  const char* name_;
  Function function_;
  bool parallel_;
};

// Runs `function` on the current stream of `device`.  It must own all it uses (backing tensors by value) and must not
// consume its captures: a captured graph runs it many times.  `name` ("aten::mm") is shown in errors; static lifetime.
// `parallel`: see kernel_threads.h.
template <typename Function>
void launch(c10::Device device, const char* name, Function&& function, bool parallel = true) {
  using Closure = std::decay_t<Function>;
  driver().launch(
      currentStreamHandle(device.index()),
      std::make_unique<ClosureTask<Closure>>(name, std::forward<Function>(function), parallel));
}

} // namespace simdev
