// Launching work on a tensor's device: the one way in which operators reach a stream.
//
// `launch` takes a closure over backing tensors that calls ATen; it runs once, in order, on the current stream of
// the device.  `launchKernel` (native kernels) is in native/.  Neither blocks, and neither copies data to the host.
#pragma once

#include "aten/kernel_scope.h"
#include "driver/driver.h"
#include "runtime/stream.h"

#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

namespace simdev {

template <typename Function>
class ClosureTask final : public Task {
 public:
  ClosureTask(c10::DeviceIndex device, const char* name, Function function, bool parallel)
      : name_(name), function_(std::move(function)), device_(device), parallel_(parallel) {}
  void run() override {
    KernelScope scope(device_, parallel_);
    function_();
  }
  const char* name() const noexcept override { return name_; }

 private:
  const char* name_;
  Function function_;
  c10::DeviceIndex device_;
  bool parallel_;
};

// Runs `function` on the current stream of `device`.  It must own all it uses (backing tensors by value) and must not
// consume its captures: a captured graph runs it many times.  `name` ("aten::mm") is shown in errors; static lifetime.
// `parallel`: see kernel_scope.h.
template <typename Function>
void launch(c10::Device device, const char* name, Function&& function, bool parallel) {
  using Closure = std::decay_t<Function>;
  driver().launch(
      currentStreamHandle(device.index()),
      std::make_unique<ClosureTask<Closure>>(
          device.index(), name, std::forward<Function>(function), parallel));
}

// A closure that is called once per block, each time on one thread of the device.
template <typename Body>
struct BlockedClosure {
  c10::DeviceIndex device;
  Body body;

  static void run(const KernelContext& context, const void* arguments) {
    const auto* self = *static_cast<const BlockedClosure* const*>(arguments);
    KernelScope scope(self->device, /*parallel=*/false);
    self->body(context.block);
  }
};

// Runs `body(block)` for each block < grid on the device's compute threads, then `finish()`; both as for launch(), which
// gets `parallel` for finish().  Only for a chip with native kernels.  Better than a kernel's own team of threads where
// its work falls into independent parts: there are no barriers, and a thread that loses its processor does not hold up
// the others.
template <typename Body, typename Finish>
void launchBlocks(
    c10::Device device,
    const char* name,
    uint32_t grid,
    Body body,
    Finish finish,
    bool parallel) {
  using Closure = BlockedClosure<Body>;
  const StreamHandle stream = currentStreamHandle(device.index());
  auto closure = std::make_shared<const Closure>(Closure{device.index(), std::move(body)});
  const Closure* const argument = closure.get();
  driver().launchKernel(stream, name, &Closure::run, grid, &argument, sizeof(argument));
  try {
    // Keeps the closure until the blocks have run, and for as long as a graph may run them again.
    launch(device, name, [closure, finish = std::move(finish)] { finish(); }, parallel);
  } catch (...) {
    try {
      driver().synchronizeStream(stream);
    } catch (const std::exception&) { // the caller gets the first error
    }
    throw;
  }
}

} // namespace simdev
