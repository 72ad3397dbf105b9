// Stream capture: turning work that is given to streams into the nodes of a graph.
//
// One lock guards all captures; they are rare, and everything that happens in one has to be consistent across
// its streams.  The checks that every call makes first are a load of a counter or a flag.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "command.h"
#include "event.h"
#include "simdev.h"

namespace sim {

class Device;
class Stream;

// A command on its own, outside of a queue.  Shared by the graph and all its instances.
using NodeCommand = std::shared_ptr<Command>;

struct Node {
  NodeCommand command;
  Device* device;
  uint32_t lane; // the streams of a capture are numbered; 0 began it
  std::vector<uint32_t> dependencies; // earlier nodes, ascending
};

class Capture {
 public:
  Capture(Stream& origin, simStreamCaptureMode mode);

  // --- With the lock held ---
  static std::mutex& mutex() noexcept;
  simStreamCaptureStatus status() const noexcept { return status_; }
  bool ended() const noexcept { return ended_; }
  uint64_t id() const noexcept { return id_; }
  void invalidate() noexcept { status_ = simStreamCaptureStatusInvalidated; }
  void join(const std::shared_ptr<Capture>& self, Stream& stream, const std::vector<uint32_t>& nodes);
  void add(Stream& stream, NodeCommand command);
  void add(Stream& stream, const std::vector<Node>& graph);
  const std::vector<uint32_t>& frontier(const Stream& stream) const { return participant(stream).frontier; }
  void depend(Stream& stream, const std::vector<uint32_t>& nodes);

  // --- Without it ---
  static void begin(Stream& stream, simStreamCaptureMode mode);
  static std::vector<Node> end(Stream& stream);
  struct Info {
    simStreamCaptureStatus status = simStreamCaptureStatusNone;
    uint64_t id = 0;
  };
  static Info infoOf(Stream& stream);
  // simEventRecord and simStreamWaitEvent where a capture is involved.
  static Event::Record record(Stream& stream);
  static void wait(Stream& stream, const Event::Record& record);

 private:
  struct Participant {
    Stream* stream;
    std::vector<uint32_t> frontier; // the nodes that this stream's next node depends on
  };

  const Participant& participant(const Stream& stream) const;
  Participant& participant(const Stream& stream) {
    return const_cast<Participant&>(std::as_const(*this).participant(stream));
  }
  bool joined() const;
  void finish() noexcept;

  friend void refuseWhileCapturing(Device& device);
  friend void refuseUnsafeCallSlow();

  const simStreamCaptureMode mode_;
  const uint64_t id_;
  const std::thread::id thread_ = std::this_thread::get_id();
  simStreamCaptureStatus status_ = simStreamCaptureStatusActive;
  bool ended_ = false;
  std::vector<Participant> participants_; // by lane
  std::vector<Node> nodes_;
};

// The captures that are on, for the first look.
extern std::atomic<int> activeCaptures;

// For calls that would wait for a capturing stream: spoils the capture and throws.
void refuseWhileCapturing(Stream& stream);
void refuseWhileCapturing(Device& device);

// For the calls that the capture's mode forbids.
void refuseUnsafeCallSlow();
inline void refuseUnsafeCall() {
  if (activeCaptures.load(std::memory_order_acquire) != 0) [[unlikely]] {
    refuseUnsafeCallSlow();
  }
}

} // namespace sim
