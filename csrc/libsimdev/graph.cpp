// Instantiating, launching and dumping graphs.
#include "graph.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <type_traits>

#include "device.h"
#include "error.h"
#include "runtime.h"
#include "stream.h"

namespace sim {

namespace {

// The graphs or instances that a program holds.  Their handles are numbers that are never given out again.
template <class T>
class Handles {
 public:
  void* add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    void* const handle = reinterpret_cast<void*>(next_ += 16); // even, as addresses are
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  std::shared_ptr<T> get(void* handle, bool remove = false) {
    Runtime::get();
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) {
      fail(simErrorInvalidResourceHandle, "not a graph, or one that has been destroyed");
    }
    std::shared_ptr<T> object = found->second;
    if (remove) {
      objects_.erase(found);
    }
    return object;
  }

  static Handles& all() {
    static auto* const handles = new Handles; // outlives everything
    return *handles;
  }

 private:
  std::mutex mutex_;
  uintptr_t next_ = uintptr_t{std::is_same_v<T, Graph> ? 0x53 : 0x54} << 56; // apart from each other's
  std::map<void*, std::shared_ptr<T>> objects_;
};

uint64_t devicesOf(const Node& node) {
  switch (node.command->kind) {
    case CommandKind::Copy:
      return static_cast<const CopyCommand&>(*node.command).devices | node.device->mask();
    case CommandKind::Fill:
      return static_cast<const FillCommand&>(*node.command).devices | node.device->mask();
    default:
      return node.device->mask();
  }
}

} // namespace

std::shared_ptr<Graph> Graph::of(simGraph_t handle) {
  return Handles<Graph>::all().get(handle);
}

std::shared_ptr<GraphExec> GraphExec::of(simGraphExec_t handle) {
  return Handles<GraphExec>::all().get(handle);
}

GraphInstance::GraphInstance(std::vector<Node> nodes) : nodes_(std::move(nodes)) {
  std::vector<bool> neededElsewhere(nodes_.size());
  for (const Node& node : nodes_) {
    for (const uint32_t dependency : node.dependencies) {
      neededElsewhere[dependency] = neededElsewhere[dependency] || nodes_[dependency].lane != node.lane;
    }
    if (node.lane >= lanes_.size()) {
      lanes_.resize(node.lane + 1, node.device);
    }
    devices_ |= devicesOf(node);
  }
  constexpr uint32_t kClosed = UINT32_MAX;
  std::vector<uint32_t> open(lanes_.size(), kClosed); // by lane, the segment that can be continued
  std::vector<uint32_t> segmentOf(nodes_.size());
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    lanes_[node.lane] = node.device;
    std::vector<uint32_t> waits;
    for (const uint32_t dependency : node.dependencies) {
      if (nodes_[dependency].lane != node.lane) {
        waits.push_back(segmentOf[dependency]);
      }
    }
    uint32_t& segment = open[node.lane];
    if (segment == kClosed || !waits.empty()) {
      segment = static_cast<uint32_t>(segments_.size());
      segments_.push_back({node.lane, {}, std::move(waits)});
    }
    segments_[segment].nodes.push_back(i);
    segmentOf[i] = segment;
    if (neededElsewhere[i]) {
      segment = kClosed;
    }
  }
}

bool GraphInstance::hasShapeOf(const GraphInstance& other) const {
  return std::equal(
      nodes_.begin(),
      nodes_.end(),
      other.nodes_.begin(),
      other.nodes_.end(),
      [](const Node& one, const Node& two) {
        return one.command->kind == two.command->kind && one.device == two.device && one.lane == two.lane &&
               one.dependencies == two.dependencies;
      });
}

void GraphInstance::runSegment(uint32_t index, Stream& worker, Stream& launchStream) noexcept {
  for (const uint32_t i : segments_[index].nodes) {
    const Node& node = nodes_[i];
    if (!(launchStream.hasError() && launchStream.device().stickyErrors())) {
      execute(*node.command, worker, *node.device, launchStream);
    }
  }
}

GraphExec::GraphExec(const Graph& graph) : instance_(new GraphInstance(graph.nodes)) {
  for (size_t lane = 1; lane < instance_->lanes().size(); ++lane) {
    Device* const device = instance_->lanes()[lane];
    lanes_.push_back(&device->createStream(simStreamNonBlocking, kLeastPriority));
  }
}

GraphExec::~GraphExec() {
  instance_->release();
  for (Stream* const lane : lanes_) {
    lane->close();
  }
}

void GraphExec::launch(Stream& stream) {
  std::lock_guard lock(mutex_);
  GraphInstance& instance = *instance_;
  if (stream.capturing()) {
    std::lock_guard captureLock(Capture::mutex());
    if (!stream.capture || stream.capture->status() != simStreamCaptureStatusActive) {
      fail(simErrorStreamCaptureInvalidated);
    }
    stream.capture->add(stream, instance.nodes());
    return;
  }
  const auto waitFor = [](Stream& waiting, Stream& other, uint64_t ticket) {
    if (&waiting != &other && !other.timeline().reached(ticket)) {
      waiting.push<WaitCommand>(nullptr, 0, Stream::Errors::Ignore, [&](WaitCommand& command) {
        command.timeline = &other.timeline();
        command.ticket = ticket;
      });
    }
  };
  stream.throwPendingError();
  if (lastStream_ != nullptr) {
    waitFor(stream, *lastStream_, lastTicket_);
  }
  const uint64_t start = stream.tail();
  stream.touch(instance.devices());
  for (Stream* const lane : lanes_) {
    lane->touch(instance.devices());
    waitFor(*lane, stream, start);
  }
  std::vector<uint64_t> tickets;
  const auto streamOf = [&](uint32_t lane) -> Stream& { return lane == 0 ? stream : *lanes_[lane - 1]; };
  for (uint32_t index = 0; index < instance.segments().size(); ++index) {
    const GraphInstance::Segment& segment = instance.segments()[index];
    Stream& own = streamOf(segment.lane);
    for (const uint32_t other : segment.waits) {
      waitFor(own, streamOf(instance.segments()[other].lane), tickets[other]);
    }
    tickets.push_back(
        own.push<SegmentCommand>("graph", 0, Stream::Errors::Ignore, [&](SegmentCommand& command) {
          command.instance = &instance;
          command.segment = index;
          command.launchStream = &stream;
          instance.retain();
        }));
  }
  for (Stream* const lane : lanes_) {
    waitFor(stream, *lane, lane->tail());
  }
  lastStream_ = &stream;
  lastTicket_ = stream.tail();
  stream.waitIfBlocking(lastTicket_);
}

void GraphExec::update(const Graph& graph) {
  auto* const updated = new GraphInstance(graph.nodes);
  std::lock_guard lock(mutex_);
  if (!updated->hasShapeOf(*instance_)) {
    updated->release();
    fail(simErrorGraphExecUpdateFailure);
  }
  std::exchange(instance_, updated)->release();
}

namespace {

void printNode(FILE* file, size_t index, const Node& node) {
  const Command& command = *node.command;
  const char* const name = command.name != nullptr ? command.name : "";
  fprintf(file, "  n%zu [label=\"%zu: ", index, index);
  switch (command.kind) {
    case CommandKind::Kernel: {
      const auto& kernel = static_cast<const KernelCommand&>(command);
      fprintf(
          file,
          "kernel %s\\ngrid (%u, %u, %u) block (%u, %u, %u)",
          name,
          kernel.grid.x,
          kernel.grid.y,
          kernel.grid.z,
          kernel.block.x,
          kernel.block.y,
          kernel.block.z);
      break;
    }
    case CommandKind::Copy: {
      const auto& copy = static_cast<const CopyCommand&>(command);
      fprintf(file, "copy %zu x %zu bytes", copy.height, copy.width);
      break;
    }
    case CommandKind::Fill: {
      const auto& fill = static_cast<const FillCommand&>(command);
      fprintf(file, "memset %zu x %zu bytes to %d", fill.height, fill.width, fill.value & 0xff);
      break;
    }
    default:
      fprintf(file, "task %s", name);
  }
  fprintf(file, "\\ndevice %d\"];\n", node.device->index());
}

} // namespace

} // namespace sim

using namespace sim;

simError_t simStreamEndCapture(simStream_t stream, simGraph_t* graph) {
  return api([&] {
    *notNull(graph, "graph") = nullptr;
    auto captured = std::make_shared<Graph>();
    captured->nodes = Capture::end(Stream::of(stream));
    *graph = static_cast<simGraph_t>(Handles<Graph>::all().add(std::move(captured)));
  });
}

simError_t simGraphDestroy(simGraph_t graph) {
  return api([&] { Handles<Graph>::all().get(graph, true); });
}

simError_t simGraphGetSize(simGraph_t graph, size_t* nodes, size_t* edges) {
  return api([&] {
    const auto captured = Graph::of(graph);
    if (nodes != nullptr) {
      *nodes = captured->nodes.size();
    }
    if (edges != nullptr) {
      *edges = 0;
      for (const Node& node : captured->nodes) {
        *edges += node.dependencies.size();
      }
    }
  });
}

simError_t simGraphDebugDotPrint(simGraph_t graph, const char* path, unsigned flags) {
  return api([&] {
    noFlags(flags);
    const auto captured = Graph::of(graph);
    FILE* const file = fopen(notNull(path, "path"), "w");
    if (file == nullptr) {
      fail(simErrorInvalidValue, "cannot write %s: %s", path, std::generic_category().message(errno).c_str());
    }
    fprintf(file, "digraph graph_%p {\n  node [shape=box];\n", static_cast<void*>(graph));
    for (size_t i = 0; i < captured->nodes.size(); ++i) {
      printNode(file, i, captured->nodes[i]);
      for (const uint32_t dependency : captured->nodes[i].dependencies) {
        fprintf(file, "  n%" PRIu32 " -> n%zu;\n", dependency, i);
      }
    }
    fprintf(file, "}\n");
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
      fail(simErrorInvalidValue, "cannot write %s", path);
    }
  });
}

simError_t simGraphInstantiate(simGraphExec_t* exec, simGraph_t graph, unsigned flags) {
  return api([&] {
    notNull(exec, "exec");
    noFlags(flags);
    auto created = std::make_shared<GraphExec>(*Graph::of(graph));
    *exec = static_cast<simGraphExec_t>(Handles<GraphExec>::all().add(std::move(created)));
  });
}

simError_t simGraphLaunch(simGraphExec_t exec, simStream_t stream) {
  return api([&] { GraphExec::of(exec)->launch(Stream::of(stream)); });
}

simError_t simGraphExecUpdate(simGraphExec_t exec, simGraph_t graph) {
  return api([&] { GraphExec::of(exec)->update(*Graph::of(graph)); });
}

simError_t simGraphExecDestroy(simGraphExec_t exec) {
  return api([&] { Handles<GraphExec>::all().get(exec, true); });
}
