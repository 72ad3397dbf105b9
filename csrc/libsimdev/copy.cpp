// Copies and memsets: checking the arguments, and choosing how pageable memory is served.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "capture.h"
#include "error.h"
#include "runtime.h"
#include "stream.h"
#include "thread_state.h"

namespace sim {

namespace {

// Up to here, a copy that the caller has to wait for is made by the calling thread once the stream is idle,
// which spares handing it over; larger ones are worth the compute threads.
constexpr size_t kCallerCopies = 1024 * 1024;
// Up to here, a pageable source is copied aside when the stream is busy; for more the caller waits.
constexpr size_t kStagedBytes = 256 * 1024;

// A rectangle of memory as device code sees it.
struct Side {
  enum class Kind { Pageable, Pinned, Device } kind = Kind::Pageable;
  char* address = nullptr;
  size_t pitch = 0;
  uint64_t devices = 0; // mask of the device it is on
};

Side resolve(Runtime& runtime, const void* pointer, size_t pitch, size_t width, size_t height) {
  notNull(pointer, "dst and src");
  if (height > 1 && pitch < width) {
    fail(simErrorInvalidValue, "a pitch of %zu bytes is less than the width of %zu", pitch, width);
  }
  size_t span = 0;
  if (__builtin_mul_overflow(pitch, height - 1, &span) || __builtin_add_overflow(span, width, &span) ||
      span > SIZE_MAX / 2) {
    fail(simErrorInvalidValue, "%zu rows of %zu bytes do not fit into an address space", height, width);
  }
  Side side{Side::Kind::Pageable, static_cast<char*>(const_cast<void*>(pointer)), pitch, 0};
  Arena* const arena = runtime.arenaOf(pointer);
  if (arena == nullptr) {
    return side;
  }
  const std::optional<Allocation> allocation = arena->find(pointer);
  if (!allocation || span > allocation->size - (reinterpret_cast<uintptr_t>(pointer) - allocation->base)) {
    fail(simErrorIllegalAddress, "%zu bytes at %p are not inside of one allocation", span, pointer);
  }
  if (arena == &runtime.hostMemory()) {
    side.kind = Side::Kind::Pinned;
    return side;
  }
  const int device = runtime.space().deviceOf(pointer);
  side.kind = Side::Kind::Device;
  side.address += runtime.space().offset(device);
  side.devices = runtime.devices()[device]->mask();
  return side;
}

void checkKind(simMemcpyKind kind, const Side& dst, const Side& src) {
  if (kind < simMemcpyHostToHost || kind > simMemcpyDefault) {
    fail(simErrorInvalidMemcpyDirection, "unknown kind %d", static_cast<int>(kind));
  }
  if (kind == simMemcpyDefault) {
    return;
  }
  const bool toDevice = kind == simMemcpyHostToDevice || kind == simMemcpyDeviceToDevice;
  const bool fromDevice = kind == simMemcpyDeviceToHost || kind == simMemcpyDeviceToDevice;
  if (toDevice != (dst.kind == Side::Kind::Device)) {
    fail(simErrorInvalidMemcpyDirection, "dst is %s memory", toDevice ? "not device" : "device");
  }
  if (fromDevice != (src.kind == Side::Kind::Device)) {
    fail(simErrorInvalidMemcpyDirection, "src is %s memory", fromDevice ? "not device" : "device");
  }
}

void copyRows(char* dst, size_t dstPitch, const char* src, size_t srcPitch, size_t width, size_t height) {
  for (size_t row = 0; row < height; ++row) {
    memcpy(dst + row * dstPitch, src + row * srcPitch, width);
  }
}

struct Free {
  void operator()(void* memory) const { free(memory); }
};

void copy(
    void* dst,
    size_t dstPitch,
    const void* src,
    size_t srcPitch,
    size_t width,
    size_t height,
    simMemcpyKind kind,
    simStream_t handle,
    bool async) {
  Runtime& runtime = Runtime::get();
  Stream& stream = Stream::of(handle);
  if (!async) {
    refuseUnsafeCall();
    refuseWhileCapturing(stream);
  }
  if (width == 0 || height == 0) {
    return;
  }
  if (height == 1) {
    dstPitch = srcPitch = width;
  }
  const Side to = resolve(runtime, dst, dstPitch, width, height);
  const Side from = resolve(runtime, src, srcPitch, width, height);
  checkKind(kind, to, from);
  if (to.pitch == width && from.pitch == width) {
    width *= height;
    height = 1;
  }
  const size_t bytes = width * height;
  stream.touch(to.devices | from.devices);

  const auto queue = [&](const char* source, size_t sourcePitch, std::unique_ptr<void, Free> staging) {
    const bool inlined = source == nullptr;
    const uint64_t ticket = stream.push<CopyCommand>(
        "memcpy", inlined ? bytes : 0, Stream::Errors::Report, [&](CopyCommand& command) {
          command.destination = to.address;
          command.destinationPitch = to.pitch;
          command.source = source;
          command.sourcePitch = sourcePitch;
          command.width = width;
          command.height = height;
          command.devices = to.devices | from.devices;
          command.staging = staging.get();
          if (inlined) {
            char* const behind = reinterpret_cast<char*>(&command + 1);
            copyRows(behind, width, from.address, from.pitch, width, height);
            command.source = behind;
            command.sourcePitch = width;
          }
        });
    staging.release();
    return ticket;
  };

  if (stream.capturing()) [[unlikely]] {
    queue(from.address, from.pitch, nullptr);
    return;
  }
  const bool fromPageable = from.kind == Side::Kind::Pageable;
  const bool callerWaits = !async || to.kind == Side::Kind::Pageable;
  if (!callerWaits && fromPageable && !stream.idle() && bytes <= kStagedBytes) {
    if (bytes <= kInlineBytes) {
      stream.waitIfBlocking(queue(nullptr, 0, nullptr));
      return;
    }
    std::unique_ptr<void, Free> staging(malloc(bytes));
    if (!staging) {
      throw std::bad_alloc();
    }
    char* const aside = static_cast<char*>(staging.get());
    copyRows(aside, width, from.address, from.pitch, width, height);
    stream.waitIfBlocking(queue(aside, width, std::move(staging)));
    return;
  }
  if (!callerWaits && !fromPageable) {
    stream.waitIfBlocking(queue(from.address, from.pitch, nullptr));
    return;
  }
  // The call returns when the copy is done.
  if (bytes <= kCallerCopies) {
    stream.wait(stream.tail());
    stream.throwPendingError();
    copyRows(to.address, to.pitch, from.address, from.pitch, width, height);
  } else {
    stream.wait(queue(from.address, from.pitch, nullptr));
    stream.throwPendingError();
  }
}

void fill(void* dst, size_t pitch, int value, size_t width, size_t height, simStream_t handle, bool async) {
  Runtime& runtime = Runtime::get();
  Stream& stream = Stream::of(handle);
  if (!async) {
    refuseUnsafeCall();
    refuseWhileCapturing(stream);
  }
  if (width == 0 || height == 0) {
    return;
  }
  if (height == 1) {
    pitch = width;
  }
  const Side to = resolve(runtime, dst, pitch, width, height);
  if (to.kind == Side::Kind::Pageable) {
    fail(simErrorInvalidValue, "%p is neither device nor page-locked host memory", dst);
  }
  if (pitch == width) {
    width *= height;
    height = 1;
  }
  stream.touch(to.devices);
  const uint64_t ticket =
      stream.push<FillCommand>("memset", 0, Stream::Errors::Report, [&](FillCommand& command) {
        command.destination = to.address;
        command.pitch = pitch;
        command.width = width;
        command.height = height;
        command.devices = to.devices;
        command.value = value;
      });
  if (async) {
    stream.waitIfBlocking(ticket);
  } else {
    stream.wait(ticket);
    stream.throwPendingError();
  }
}

void checkOwner(const void* pointer, int device) {
  Runtime& runtime = Runtime::get();
  runtime.device(device);
  if (runtime.space().deviceOf(pointer) != device) {
    fail(simErrorInvalidValue, "%p is not memory of device %d", pointer, device);
  }
}

void copyPeer(
    void* dst,
    int dstDevice,
    const void* src,
    int srcDevice,
    size_t bytes,
    simStream_t stream,
    bool async) {
  if (bytes > 0) {
    checkOwner(dst, dstDevice);
    checkOwner(src, srcDevice);
  }
  copy(dst, bytes, src, bytes, bytes, 1, simMemcpyDeviceToDevice, stream, async);
}

} // namespace

} // namespace sim

using namespace sim;

simError_t simMemcpy(void* dst, const void* src, size_t bytes, simMemcpyKind kind) {
  return api([&] { copy(dst, bytes, src, bytes, bytes, 1, kind, nullptr, false); });
}

simError_t simMemcpyAsync(void* dst, const void* src, size_t bytes, simMemcpyKind kind, simStream_t stream) {
  return api([&] { copy(dst, bytes, src, bytes, bytes, 1, kind, stream, true); });
}

simError_t simMemcpy2D(
    void* dst,
    size_t dstPitch,
    const void* src,
    size_t srcPitch,
    size_t width,
    size_t height,
    simMemcpyKind kind) {
  return api([&] { copy(dst, dstPitch, src, srcPitch, width, height, kind, nullptr, false); });
}

simError_t simMemcpy2DAsync(
    void* dst,
    size_t dstPitch,
    const void* src,
    size_t srcPitch,
    size_t width,
    size_t height,
    simMemcpyKind kind,
    simStream_t stream) {
  return api([&] { copy(dst, dstPitch, src, srcPitch, width, height, kind, stream, true); });
}

simError_t simMemcpyPeer(void* dst, int dstDevice, const void* src, int srcDevice, size_t bytes) {
  return api([&] { copyPeer(dst, dstDevice, src, srcDevice, bytes, nullptr, false); });
}

simError_t simMemcpyPeerAsync(
    void* dst,
    int dstDevice,
    const void* src,
    int srcDevice,
    size_t bytes,
    simStream_t stream) {
  return api([&] { copyPeer(dst, dstDevice, src, srcDevice, bytes, stream, true); });
}

simError_t simMemset(void* dst, int value, size_t bytes) {
  return api([&] { fill(dst, bytes, value, bytes, 1, nullptr, false); });
}

simError_t simMemsetAsync(void* dst, int value, size_t bytes, simStream_t stream) {
  return api([&] { fill(dst, bytes, value, bytes, 1, stream, true); });
}

simError_t simMemset2D(void* dst, size_t pitch, int value, size_t width, size_t height) {
  return api([&] { fill(dst, pitch, value, width, height, nullptr, false); });
}

simError_t
simMemset2DAsync(void* dst, size_t pitch, int value, size_t width, size_t height, simStream_t stream) {
  return api([&] { fill(dst, pitch, value, width, height, stream, true); });
}
