// Launching kernels, tasks and host functions.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "error.h"
#include "runtime.h"
#include "stream.h"

using namespace sim;

namespace {

void checkConfig(const simLaunchConfig& config) {
  const simDim3 &grid = config.gridDim, &block = config.blockDim;
  // The products cannot overflow once the factors are known to be small.
  const bool gridValid = grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 && grid.y <= UINT16_MAX &&
                         grid.z >= 1 && grid.z <= UINT16_MAX &&
                         uint64_t{grid.x} * grid.y * grid.z <= UINT32_MAX;
  const bool blockValid = block.x >= 1 && block.x <= 1024 && block.y >= 1 && block.y <= 1024 &&
                          block.z >= 1 && block.z <= 1024 && uint64_t{block.x} * block.y * block.z <= 1024;
  if (!gridValid || !blockValid) [[unlikely]] {
    fail(
        simErrorInvalidConfiguration,
        "grid (%u, %u, %u), block (%u, %u, %u)",
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z);
  }
}

struct Free {
  void operator()(void* memory) const { free(memory); }
};

} // namespace

simError_t
simLaunchKernel(const simLaunchConfig* config, simKernel_t kernel, const void* args, size_t argBytes) {
  return api([&] {
    notNull(config, "config");
    notNull(kernel, "kernel");
    checkConfig(*config);
    if (argBytes > simMaxKernelArgBytes || (argBytes > 0 && args == nullptr)) [[unlikely]] {
      fail(
          simErrorInvalidValue,
          "%zu argument bytes at %p, of at most %d",
          argBytes,
          args,
          simMaxKernelArgBytes);
    }
    Stream& stream = Stream::of(config->stream);
    std::unique_ptr<void, Free> onHeap;
    if (argBytes > kInlineBytes) {
      onHeap.reset(malloc(argBytes));
      if (!onHeap) {
        throw std::bad_alloc();
      }
      memcpy(onHeap.get(), args, argBytes);
    }
    const size_t inlineBytes = onHeap ? 0 : argBytes;
    const uint64_t ticket = stream.push<KernelCommand>(
        config->name, inlineBytes, Stream::Errors::Report, [&](KernelCommand& command) {
          command.function = kernel;
          command.heapArguments = onHeap.get();
          command.grid = config->gridDim;
          command.block = config->blockDim;
          command.argumentBytes = static_cast<uint32_t>(argBytes);
          if (inlineBytes != 0) {
            memcpy(command.inlineArguments(), args, inlineBytes);
          }
        });
    onHeap.release();
    stream.waitIfBlocking(ticket);
  });
}

simError_t
simLaunchTask(simStream_t handle, const char* name, simTaskFn_t run, simTaskFn_t destroy, void* data) {
  std::unique_ptr<void, simTaskFn_t> owner(data, destroy != nullptr ? destroy : [](void*) {});
  return api([&] {
    notNull(run, "run");
    Stream& stream = Stream::of(handle);
    const uint64_t ticket =
        stream.push<TaskCommand>(name, 0, Stream::Errors::Report, [&](TaskCommand& command) {
          command.run = run;
          command.destroy = destroy;
          command.data = data;
        });
    (void)owner.release(); // the stream's now, even if what it reports below is an error of this very task
    stream.waitIfBlocking(ticket);
  });
}

simError_t simLaunchHostFunc(simStream_t stream, simHostFn_t function, void* data) {
  return simLaunchTask(stream, "host function", function, nullptr, data);
}
