// Running commands: what the stream's worker does with each kind.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bulk_copy.h"
#include "command.h"
#include "device.h"
#include "event.h"
#include "graph.h"
#include "runtime.h"
#include "spinning.h"
#include "stream.h"

namespace sim {

namespace {

// Copies and fills from this size on are shared out to the compute threads; below, waking one takes longer
// than it saves.
constexpr size_t kParallelBytes = size_t{2} << 20;
// A worker whose next command waits for another stream looks this long before it sleeps.
constexpr uint64_t kWaitSpinNanoseconds = 10'000;

uint64_t blocks(simDim3 grid) {
  return uint64_t{grid.x} * grid.y * grid.z;
}

struct KernelLoop {
  KernelCommand& command;
  simKernelContext context; // of the first block
  Execution& execution;

  // Blocks are numbered with x running fastest.
  static void run(void* self, uint64_t begin, uint64_t end) {
    auto& [command, first, execution] = *static_cast<KernelLoop*>(self);
    runDeviceCode(execution, [&, context = first]() mutable {
      const simDim3 grid = context.gridDim;
      context.blockIdx = {
          static_cast<uint32_t>(begin % grid.x),
          static_cast<uint32_t>(begin / grid.x % grid.y),
          static_cast<uint32_t>(begin / grid.x / grid.y)};
      for (uint64_t block = begin; block < end; ++block) {
        const simKernelContext own = context; // the kernel cannot change what its successor sees
        command.function(&own, command.arguments());
        if (++context.blockIdx.x == grid.x) {
          context.blockIdx.x = 0;
          if (++context.blockIdx.y == grid.y) {
            context.blockIdx.y = 0;
            ++context.blockIdx.z;
          }
        }
      }
    });
  }
};

void run(KernelCommand& command, Stream& stream, Device& device, Stream& launchStream) {
  KernelLoop loop{
      command,
      {{0, 0, 0}, command.grid, command.block, device.index(), device.memoryOffset(), launchStream.handle()},
      stream.execution()};
  const uint64_t count = blocks(command.grid);
  const uint64_t grain = std::max<uint64_t>(1, count / (static_cast<uint64_t>(device.pool().threads()) * 16));
  device.pool().parallelFor(loop.execution, count, grain, stream.priority(), {KernelLoop::run, &loop});
}

// Calls body(offset of the row or piece, bytes) for `height` rows or, if there is only one, for pieces of it.
template <class Body>
void forRows(size_t width, size_t height, Stream& stream, Device& device, Body body) {
  ComputePool& pool = device.pool();
  if (width * height < kParallelBytes || pool.threads() == 1) {
    for (size_t row = 0; row < height; ++row) {
      body(row, 0, width);
    }
    return;
  }
  struct Loop {
    Body& body;
    size_t width;
    size_t piece;
    size_t piecesPerRow;
  } loop{body, width, width, 1};
  // Small enough that a thread which loses its CPU does not hold up the others for long.
  const size_t shares = static_cast<size_t>(pool.threads()) * 8;
  if (height < shares) {
    loop.piece = std::clamp<size_t>((width * height / shares + 4095) / 4096 * 4096, 256 * 1024, 2048 * 1024);
    loop.piecesPerRow = (width + loop.piece - 1) / loop.piece;
  }
  const uint64_t count = height * loop.piecesPerRow;
  const auto function = [](void* data, uint64_t begin, uint64_t end) {
    const Loop& rows = *static_cast<Loop*>(data);
    for (uint64_t i = begin; i < end; ++i) {
      const size_t offset = i % rows.piecesPerRow * rows.piece;
      rows.body(i / rows.piecesPerRow, offset, std::min(rows.piece, rows.width - offset));
    }
  };
  const uint64_t grain = std::max<uint64_t>(1, count / shares);
  pool.parallelFor(stream.execution(), count, grain, stream.priority(), {function, &loop});
}

void run(CopyCommand& command, Stream& stream, Device& device) {
  const bool streaming = command.width * command.height >= kStreamingBytes;
  forRows(command.width, command.height, stream, device, [&](size_t row, size_t offset, size_t bytes) {
    char* const destination =
        static_cast<char*>(command.destination) + row * command.destinationPitch + offset;
    const char* const source = static_cast<const char*>(command.source) + row * command.sourcePitch + offset;
    if (streaming) {
      copyStreaming(destination, source, bytes);
    } else {
      memcpy(destination, source, bytes);
    }
  });
}

void run(FillCommand& command, Stream& stream, Device& device) {
  forRows(command.width, command.height, stream, device, [&](size_t row, size_t offset, size_t bytes) {
    memset(static_cast<char*>(command.destination) + row * command.pitch + offset, command.value, bytes);
  });
}

void run(WaitCommand& command, Stream& stream) {
  const auto reached = [&] { return command.timeline->reached(command.ticket); };
  if (!reached() && !Spinning::until(kWaitSpinNanoseconds, 0, reached)) {
    stream.setBusy(false);
    command.timeline->wait(command.ticket, 0);
    stream.setBusy(true);
  }
}

void keepFailure(const Command& command, Stream& stream, Stream& launchStream) noexcept {
  if (Execution& execution = stream.execution(); execution.failed()) [[unlikely]] {
    try {
      const char* const name = command.name != nullptr ? command.name : "kernel";
      launchStream.keepError({simErrorLaunchFailure, std::string(name) + ": " + execution.takeMessage()});
    } catch (const std::bad_alloc&) {
      launchStream.keepError({simErrorLaunchFailure, {}});
    }
  }
}

} // namespace

void execute(Command& command, Stream& stream, Device& device, Stream& launchStream) noexcept {
  switch (command.kind) {
    case CommandKind::Kernel:
      run(static_cast<KernelCommand&>(command), stream, device, launchStream);
      break;
    case CommandKind::Task: {
      auto& task = static_cast<TaskCommand&>(command);
      runDeviceCode(stream.execution(), [&] { task.run(task.data); });
      break;
    }
    case CommandKind::Copy:
      run(static_cast<CopyCommand&>(command), stream, device);
      return;
    case CommandKind::Fill:
      run(static_cast<FillCommand&>(command), stream, device);
      return;
    case CommandKind::Stamp: {
      auto& stamp = static_cast<StampCommand&>(command);
      stamp.event->stamp(stamp.generation);
      return;
    }
    case CommandKind::Wait:
      run(static_cast<WaitCommand&>(command), stream);
      return;
    case CommandKind::Segment: {
      auto& segment = static_cast<SegmentCommand&>(command);
      segment.instance->runSegment(segment.segment, stream, *segment.launchStream);
      return;
    }
    case CommandKind::Pad:
    case CommandKind::Retire:
      return;
  }
  keepFailure(command, stream, launchStream);
}

void dispose(Command& command) noexcept {
  switch (command.kind) {
    case CommandKind::Kernel:
      free(static_cast<KernelCommand&>(command).heapArguments);
      break;
    case CommandKind::Task: {
      auto& task = static_cast<TaskCommand&>(command);
      if (task.destroy != nullptr) {
        Execution none; // a closure's destructor has nobody to fail to
        runDeviceCode(none, [&] { task.destroy(task.data); });
      }
      break;
    }
    case CommandKind::Copy:
      free(static_cast<CopyCommand&>(command).staging);
      break;
    case CommandKind::Segment:
      static_cast<SegmentCommand&>(command).instance->release();
      break;
    default:
      break;
  }
}

} // namespace sim
