// Graphs: captured work, and what is needed to launch all of it at once.
//
// The nodes keep the lanes they were captured in, one per stream.  An instance cuts each lane into *segments*
// wherever another lane depends on it or it depends on another.  A launch queues the segments, not the nodes:
// lane 0 into the stream it is launched into, every other lane into a stream of the instance's own, with
// waits in between.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "capture.h"

namespace sim {

struct Graph {
  std::vector<Node> nodes; // a node comes after those it depends on

  static std::shared_ptr<Graph> of(simGraph_t handle);
};

// Nodes and segments; never changes.  Alive as long as the executable graph or a queued launch needs it.
class GraphInstance {
 public:
  explicit GraphInstance(std::vector<Node> nodes);

  struct Segment {
    uint32_t lane;
    std::vector<uint32_t> nodes;
    std::vector<uint32_t> waits; // earlier segments of other lanes
  };
  const std::vector<Node>& nodes() const noexcept { return nodes_; }
  const std::vector<Segment>& segments() const noexcept { return segments_; }
  // The device of each lane's stream.
  const std::vector<Device*>& lanes() const noexcept { return lanes_; }
  // All devices whose memory is used.
  uint64_t devices() const noexcept { return devices_; }
  bool hasShapeOf(const GraphInstance& other) const;

  void runSegment(uint32_t index, Stream& worker, Stream& launchStream) noexcept;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

 private:
  const std::vector<Node> nodes_;
  std::vector<Segment> segments_;
  std::vector<Device*> lanes_;
  uint64_t devices_ = 0;
  std::atomic<int> references_{1};
};

class GraphExec {
 public:
  explicit GraphExec(const Graph& graph);
  ~GraphExec();
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  static std::shared_ptr<GraphExec> of(simGraphExec_t handle);

  void launch(Stream& stream);
  void update(const Graph& graph);

 private:
  std::mutex mutex_; // of all below
  GraphInstance* instance_;
  std::vector<Stream*> lanes_; // lane i + 1
  Stream* lastStream_ = nullptr; // where the latest launch went, and when it is done
  uint64_t lastTicket_ = 0;
};

} // namespace sim
