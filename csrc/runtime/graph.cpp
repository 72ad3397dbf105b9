// Capture, replay, and what belongs to a graph.  See graph.h.
#include "runtime/graph.h"

#include "runtime/caching_allocator.h"
#include "runtime/delegate.h"
#include "runtime/device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <map>

namespace simdev {

namespace {

using compat::GraphCaptureMode;

constexpr c10::MempoolId_t kNoPool{0, 0};

std::atomic<bool> debugging{false};

// The graphs that are capturing, by the driver's number of the capture.  The count is for the first look.
struct Captures {
  std::mutex mutex;
  std::map<uint64_t, Graph*> graphs;
  std::atomic<size_t> count{0};
};

Captures& captures() {
  static auto* const instance = new Captures; // used by threads that outlive static objects
  return *instance;
}

template <typename Change>
void changeCaptures(Change change) {
  Captures& all = captures();
  const std::lock_guard lock(all.mutex);
  change(all.graphs);
  all.count.store(all.graphs.size(), std::memory_order_release);
}

bool belongsTo(StreamHandle stream, uint64_t captureId) {
  const CaptureInfo info = driver().captureInfo(stream);
  return info.status != CaptureStatus::None && info.id == captureId;
}

} // namespace

Graph* capturingGraph(StreamHandle stream) {
  Captures& all = captures();
  if (C10_LIKELY(all.count.load(std::memory_order_acquire) == 0)) {
    return nullptr;
  }
  const CaptureInfo info = driver().captureInfo(stream);
  const std::lock_guard lock(all.mutex);
  const auto found = all.graphs.find(info.id);
  return found == all.graphs.end() ? nullptr : found->second;
}

c10::MempoolId_t newPoolId() {
  static std::atomic<c10::CaptureId_t> next{1};
  return {0, next++};
}

Graph::~Graph() {
  if (!isInBadFork()) {
    reset();
  }
}

void Graph::capture_begin(c10::MempoolId_t pool, GraphCaptureMode mode) {
  TORCH_CHECK_VALUE(
      mode >= GraphCaptureMode::Default && mode <= GraphCaptureMode::Relaxed,
      "Invalid GraphCaptureMode value: ",
      static_cast<int>(mode));
  TORCH_CHECK(
      !captured_ && captureId_ == 0,
      "This Graph instance already owns a captured graph. To capture a new graph, create a new instance.");
  const Stream stream = getCurrentStream();
  TORCH_CHECK(
      !stream.isDefault(),
      "Graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
      "the "
      "default stream.)");
  const StreamHandle handle = stream.handle();
  stream_ = stream;
  pool_ = pool == kNoPool ? newPoolId() : pool;
  // The allocator is told first, so that no block freed on another thread meets a capture that it does not know of.
  allocator().beginAllocateToPool(stream.device_index(), pool_, [this](StreamHandle other) {
    return captureId_ != 0 && belongsTo(other, captureId_);
  });
  try {
    driver().beginCapture(handle);
  } catch (...) {
    endAllocation();
    allocator().releasePool(stream.device_index(), pool_);
    throw;
  }
  captureId_ = driver().captureInfo(handle).id;
  changeCaptures([this](auto& graphs) { graphs.emplace(captureId_, this); });
}

void Graph::capture_end() {
  TORCH_CHECK(captureId_ != 0, "capture_end() called before capture_begin().");
  TORCH_CHECK(getCurrentStream() == *stream_, "Capture must end on the same stream it began on.");
  changeCaptures([this](auto& graphs) { graphs.erase(captureId_); });
  try {
    graph_ = driver().endCapture(stream_->handle());
  } catch (...) {
    endAllocation();
    captured_ = true; // for reset()
    reset();
    throw;
  }
  endAllocation();
  captured_ = true;
  if (driver().graphNodeCount(graph_) == 0) {
    TORCH_WARN(
        "The graph is empty. This usually means that the graph was attempted to be captured on wrong device "
        "or "
        "stream.");
  }
  if (!keepGraph_) {
    instantiate();
    if (!debugging) {
      dropGraph();
    }
  }
}

void Graph::endAllocation() noexcept {
  captureId_ = 0;
  allocator().endAllocateToPool(stream_->device_index(), pool_);
}

void Graph::instantiate() {
  TORCH_CHECK(captured_, "capture_end() must have been called before calling instantiate");
  TORCH_CHECK(
      instance_ == nullptr || keepGraph_,
      "instantiate() is intended to be called by the user only when keep_graph=true");
  GraphExecHandle created = driver().instantiateGraph(graph_);
  dropInstance();
  instance_ = created;
}

void Graph::replay() {
  TORCH_CHECK(captured_, "Called Graph::replay without a preceding successful capture.");
  if (instance_ == nullptr) {
    instantiate();
  }
  const c10::DeviceIndex device = stream_->device_index();
  const StreamHandle stream = currentStreamHandle(device);
  for (const CapturedGenerator& captured : generators_) {
    const PhiloxPosition position = captured.generator->advance(captured.used);
    driver().memcpyAsync(
        captured.position.get(), &position, sizeof position, MemcpyKind::HostToDevice, stream);
  }
  driver().launchGraph(instance_, stream);
}

void Graph::reset() {
  if (captureId_ != 0) { // nobody will end it
    changeCaptures([this](auto& graphs) { graphs.erase(captureId_); });
    try {
      graph_ = driver().endCapture(stream_->handle());
    } catch (...) { // an invalidated capture leaves no graph
    }
    endAllocation();
    captured_ = true;
  }
  generators_.clear();
  dropInstance();
  dropGraph();
  if (captured_) {
    captured_ = false;
    allocator().releasePool(stream_->device_index(), pool_);
  }
}

void Graph::dropGraph() noexcept {
  if (graph_ != nullptr) {
    driver().destroyGraph(std::exchange(graph_, nullptr));
  }
}

void Graph::dropInstance() noexcept {
  if (instance_ != nullptr) {
    driver().destroyGraphExec(std::exchange(instance_, nullptr));
  }
}

c10::MempoolId_t Graph::pool() const {
  TORCH_CHECK(captured_, "Called Graph::pool() without a preceding successful capture.");
  return pool_;
}

void Graph::enable_debug_mode() {
  debugging = true;
}

void Graph::debug_dump(const std::string& path) {
  if (!debugging && !keepGraph_) {
    TORCH_WARN("Graphs debug not enabled, set with [graph].enable_debug_mode()");
    return;
  }
  TORCH_CHECK(
      graph_ != nullptr, "There is no graph to dump: it was not captured, or it has been dumped before");
  driver().dumpGraph(graph_, path);
  if (!keepGraph_) {
    dropGraph();
  }
}

PhiloxState Graph::reserve(const GeneratorImpl::SharedState& generator, uint64_t increment) {
  const std::lock_guard lock(generatorsMutex_);
  auto captured = std::ranges::find(generators_, generator, &CapturedGenerator::generator);
  const c10::DeviceIndex device = stream_->device_index();
  if (captured == generators_.end()) {
    // From the graph's pool, which nobody else allocates from while the graph lives.
    generators_.push_back(
        {generator, allocator().allocate(sizeof(PhiloxPosition), device, stream_->handle()), 0});
    captured = generators_.end() - 1;
  }
  const uint64_t offset = captured->used;
  captured->used += increment;
  return {
      {0, offset},
      static_cast<const PhiloxPosition*>(driver().kernelPointer(device, captured->position.get()))};
}

// --- Registration -----------------------------------------------------------------------------------------------

std::unique_ptr<compat::GraphImplInterface> createGraph(bool keepGraph) {
  lazyInit();
  DelegateDriver* const delegate = activeDelegate();
  if (delegate == nullptr) {
    return std::make_unique<Graph>(keepGraph);
  }
#if SIMDEV_HAS_ACCELERATOR_GRAPH
  // Capture follows the current stream, which is the delegate's.
  if (at::has_graph_impl(delegate->type())) {
    return at::create_graph_impl(delegate->type(), {keepGraph});
  }
#endif
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "The driver '",
      delegate->name(),
      "' has no graphs that PyTorch ",
      SIMDEV_TORCH_VERSION,
      " can reach without it; torch.simdev.Graph uses torch.cuda.CUDAGraph where there is one");
}

void registerGraphs() {
#if SIMDEV_HAS_ACCELERATOR_GRAPH
  if (!at::has_graph_impl(kDeviceType)) {
    at::GraphImplRegistry()->Register(
        c10::DeviceTypeName(kDeviceType, /*lower_case=*/false),
        [](const at::GraphImplArgs& args) { return createGraph(args.keep_graph); });
  }
#endif
}

} // namespace simdev
