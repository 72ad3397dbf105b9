// What can stand in a stream's queue, and in a graph's nodes.
//
// Commands are plain data in the style of a GPU's command buffer: a header and what the kind needs, in whole
// cells of a cache line.  They are written in place, run in place, and contain addresses as the device's code
// sees them. Running them is execute.cpp; moving them is command_queue.h.
#pragma once

#include <cstdint>

#include "futex.h"
#include "simdev.h"

namespace sim {

class Device;
class GraphInstance;
class Stream;
class Timeline;
struct Event;

enum class CommandKind : uint16_t { Pad, Kernel, Task, Copy, Fill, Stamp, Wait, Segment, Retire };

// No member has an initialiser: a command is made in memory whose first word another thread is looking at.
struct Command {
  uint32_t ready; // the queue's: nonzero when the rest is complete
  CommandKind kind;
  uint16_t cells;
  const char* name; // of the operator, for error messages
};

struct KernelCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Kernel;
  simKernel_t function;
  void* heapArguments; // for more than fits into a command; else null and they follow the command
  simDim3 grid;
  simDim3 block;
  uint32_t argumentBytes;

  void* inlineArguments() { return this + 1; }
  const void* arguments() { return heapArguments != nullptr ? heapArguments : inlineArguments(); }
};
static_assert(sizeof(KernelCommand) == kCacheLine, "the arguments are to be 16-byte aligned behind it");

struct TaskCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Task;
  simTaskFn_t run;
  simTaskFn_t destroy; // may be null
  void* data;
};

// `height` rows of `width` bytes; a contiguous range is one row.
struct CopyCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Copy;
  void* destination;
  const void* source;
  size_t destinationPitch;
  size_t sourcePitch;
  size_t width;
  size_t height;
  uint64_t devices; // bit mask of the devices whose memory is used
  void* staging; // freed afterwards; may be null
};

struct FillCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Fill;
  void* destination;
  size_t pitch;
  size_t width;
  size_t height;
  uint64_t devices;
  int value;
};

// Takes the time for one record of an event.
struct StampCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Stamp;
  Event* event;
  uint64_t generation;
};

struct WaitCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Wait;
  Timeline* timeline;
  uint64_t ticket;
};

// A run of nodes of a graph, see graph.h.  Holds a reference to the instance.
struct SegmentCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Segment;
  GraphInstance* instance;
  Stream* launchStream;
  uint32_t segment;
};

// The stream's last: its handle has been destroyed.
struct RetireCommand : Command {
  static constexpr CommandKind kKind = CommandKind::Retire;
};

// The kernel arguments and staged bytes that travel inside of a command; more goes to the heap.
constexpr size_t kInlineBytes = 192;

constexpr uint16_t cellsFor(size_t bytes) {
  return static_cast<uint16_t>((bytes + kCacheLine - 1) / kCacheLine);
}

// Runs a command on the calling thread, which is the worker of `stream`, as code of `device`.  `launchStream`
// is the stream that the program gave the work to: kernels see it, and it keeps their errors.
void execute(Command& command, Stream& stream, Device& device, Stream& launchStream) noexcept;
// Frees what the command owns, once, whether or not it has run.
void dispose(Command& command) noexcept;

} // namespace sim
