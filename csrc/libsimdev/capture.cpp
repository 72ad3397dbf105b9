// Stream capture: which streams take part, what depends on what, and what spoils it.
#include "capture.h"

#include <algorithm>
#include <cstdlib>

#include "device.h"
#include "error.h"
#include "runtime.h"
#include "stream.h"

namespace sim {

std::atomic<int> activeCaptures{0};

namespace {

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const all =
      new std::vector<std::shared_ptr<Capture>>; // guarded by the lock; outlives everything
  return *all;
}

uint64_t latestId = 0; // guarded by the lock

void unite(std::vector<uint32_t>& nodes, const std::vector<uint32_t>& more) {
  nodes.insert(nodes.end(), more.begin(), more.end());
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
}

void requireValid(const Capture& capture) {
  if (capture.status() != simStreamCaptureStatusActive) {
    fail(simErrorStreamCaptureInvalidated);
  }
}

} // namespace

std::mutex& Capture::mutex() noexcept {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

Capture::Capture(Stream& origin, simStreamCaptureMode mode)
    : mode_(mode), id_(++latestId), participants_{{&origin, {}}} {}

const Capture::Participant& Capture::participant(const Stream& stream) const {
  return *std::find_if(participants_.begin(), participants_.end(), [&](const Participant& one) {
    return one.stream == &stream;
  });
}

void Capture::join(const std::shared_ptr<Capture>& self, Stream& stream, const std::vector<uint32_t>& nodes) {
  participants_.push_back({&stream, nodes});
  stream.capture = self;
  stream.setCapturing(true);
}

void Capture::depend(Stream& stream, const std::vector<uint32_t>& nodes) {
  unite(participant(stream).frontier, nodes);
}

void Capture::add(Stream& stream, NodeCommand command) {
  Participant& own = participant(stream);
  const auto lane = static_cast<uint32_t>(&own - participants_.data());
  const auto index = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({std::move(command), &stream.device(), lane, own.frontier});
  own.frontier.assign(1, index);
}

// The nodes of a graph that is launched into the capture, in their order, which respects their dependencies.
void Capture::add(Stream& stream, const std::vector<Node>& graph) {
  Participant& own = participant(stream);
  const auto lane = static_cast<uint32_t>(&own - participants_.data());
  const auto first = static_cast<uint32_t>(nodes_.size());
  std::vector<bool> isLast(graph.size(), true);
  for (const Node& node : graph) {
    Node copy{node.command, node.device, lane, {}};
    for (const uint32_t dependency : node.dependencies) {
      copy.dependencies.push_back(first + dependency);
      isLast[dependency] = false;
    }
    if (node.dependencies.empty()) {
      copy.dependencies = own.frontier;
    }
    nodes_.push_back(std::move(copy));
  }
  if (!graph.empty()) {
    own.frontier.clear();
    for (uint32_t i = 0; i < graph.size(); ++i) {
      if (isLast[i]) {
        own.frontier.push_back(first + i);
      }
    }
  }
}

// Whether everything captured comes before the origin's next node.
bool Capture::joined() const {
  std::vector<bool> reached(nodes_.size());
  for (const uint32_t node : participants_[0].frontier) {
    reached[node] = true;
  }
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (!reached[i]) {
      return false;
    }
    for (const uint32_t dependency : nodes_[i].dependencies) {
      reached[dependency] = true;
    }
  }
  return true;
}

void Capture::finish() noexcept {
  for (const Participant& one : participants_) {
    one.stream->setCapturing(false);
    one.stream->capture.reset();
  }
  ended_ = true;
  std::erase_if(captures(), [&](const auto& capture) { return capture.get() == this; });
  activeCaptures.fetch_sub(1, std::memory_order_release);
}

void Capture::begin(Stream& stream, simStreamCaptureMode mode) {
  if (mode < simStreamCaptureModeGlobal || mode > simStreamCaptureModeRelaxed) {
    fail(simErrorInvalidValue, "unknown capture mode %d", static_cast<int>(mode));
  }
  std::lock_guard lock(Capture::mutex());
  if (stream.capture) {
    stream.capture->invalidate();
    fail(simErrorStreamCaptureUnsupported, "the stream is capturing already");
  }
  const auto capture = std::make_shared<Capture>(stream, mode);
  captures().push_back(capture);
  activeCaptures.fetch_add(1, std::memory_order_release);
  stream.capture = capture;
  stream.setCapturing(true);
}

std::vector<Node> Capture::end(Stream& stream) {
  std::lock_guard lock(Capture::mutex());
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) {
    fail(simErrorStreamCaptureUnmatched, "the stream is not capturing");
  }
  if (capture->participants_[0].stream != &stream) {
    fail(simErrorStreamCaptureUnmatched);
  }
  if (capture->mode_ != simStreamCaptureModeRelaxed && capture->thread_ != std::this_thread::get_id()) {
    fail(simErrorStreamCaptureWrongThread);
  }
  capture->finish();
  requireValid(*capture);
  if (!capture->joined()) {
    fail(simErrorStreamCaptureUnjoined);
  }
  return std::move(capture->nodes_);
}

Capture::Info Capture::infoOf(Stream& stream) {
  if (!stream.capturing()) {
    return {};
  }
  std::lock_guard lock(Capture::mutex());
  return stream.capture ? Info{stream.capture->status(), stream.capture->id()} : Info{};
}

Event::Record Capture::record(Stream& stream) {
  std::lock_guard lock(Capture::mutex());
  if (!stream.capture) {
    fail(simErrorStreamCaptureUnmatched, "the capture has just ended");
  }
  requireValid(*stream.capture);
  Event::Record record;
  record.stream = &stream;
  record.capture = stream.capture;
  record.nodes = stream.capture->frontier(stream);
  return record;
}

void Capture::wait(Stream& stream, const Event::Record& record) {
  std::lock_guard lock(Capture::mutex());
  Capture* const own = stream.capture.get();
  if (!record.capture) {
    if (own != nullptr) {
      own->invalidate();
    }
    fail(simErrorStreamCaptureIsolation, "the event was recorded outside of the capture");
  }
  Capture& other = *record.capture;
  if (other.ended()) {
    if (own != nullptr) {
      own->invalidate();
    }
    fail(simErrorCapturedEvent, "the capture that the event was recorded in has ended");
  }
  requireValid(other);
  if (own == nullptr) {
    other.join(record.capture, stream, record.nodes);
  } else if (own == &other) {
    own->depend(stream, record.nodes);
  } else {
    own->invalidate();
    other.invalidate();
    fail(simErrorStreamCaptureMerge);
  }
}

void refuseWhileCapturing(Stream& stream) {
  if (stream.capturing()) [[unlikely]] {
    std::lock_guard lock(Capture::mutex());
    if (stream.capture) {
      stream.capture->invalidate();
      fail(simErrorStreamCaptureUnsupported);
    }
  }
}

void refuseWhileCapturing(Device& device) {
  if (activeCaptures.load(std::memory_order_acquire) == 0) {
    return;
  }
  std::lock_guard lock(Capture::mutex());
  bool refused = false;
  for (const auto& capture : captures()) {
    for (const auto& participant : capture->participants_) {
      if (&participant.stream->device() == &device) {
        capture->invalidate();
        refused = true;
      }
    }
  }
  if (refused) {
    fail(simErrorStreamCaptureUnsupported, "a stream of device %d is capturing", device.index());
  }
}

void refuseUnsafeCallSlow() {
  std::lock_guard lock(Capture::mutex());
  bool refused = false;
  for (const auto& capture : captures()) {
    if (capture->mode_ == simStreamCaptureModeGlobal || (capture->mode_ == simStreamCaptureModeThreadLocal &&
                                                         capture->thread_ == std::this_thread::get_id())) {
      capture->invalidate();
      refused = true;
    }
  }
  if (refused) {
    fail(simErrorStreamCaptureUnsupported, "the mode of a capture forbids this call");
  }
}

// --- What a capturing stream does with commands (declared in stream.h) ---

Command* Stream::newNode(size_t bytes) {
  void* const memory = aligned_alloc(kCacheLine, cellsFor(bytes) * kCacheLine);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return static_cast<Command*>(memory);
}

// On failure what the command refers to still belongs to the caller of push().
void Stream::addNode(Command* command) {
  const auto release = [](Command* one) {
    dispose(*one);
    free(one);
  };
  std::lock_guard lock(Capture::mutex());
  try {
    if (!capture) {
      fail(simErrorStreamCaptureUnmatched, "the capture has just ended");
    }
    requireValid(*capture);
  } catch (...) {
    free(command);
    throw;
  }
  capture->add(*this, NodeCommand(command, release));
}

} // namespace sim

using namespace sim;

simError_t simStreamBeginCapture(simStream_t stream, simStreamCaptureMode mode) {
  return api([&] { Capture::begin(Stream::of(stream), mode); });
}

simError_t simStreamIsCapturing(simStream_t stream, simStreamCaptureStatus* status) {
  return api([&] { *notNull(status, "status") = Capture::infoOf(Stream::of(stream)).status; });
}

simError_t
simStreamGetCaptureInfo(simStream_t stream, simStreamCaptureStatus* status, unsigned long long* id) {
  return api([&] {
    const Capture::Info info = Capture::infoOf(Stream::of(stream));
    if (status != nullptr) {
      *status = info.status;
    }
    if (id != nullptr) {
      *id = info.id;
    }
  });
}
