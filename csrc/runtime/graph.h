// Graphs as PyTorch sees them: work of the current stream, captured once and replayed.
//
// Lives here: torch.accelerator.Graph and torch.simdev.Graph on a driver of our own, the memory pool that a graph's tensors
// come from, and the random numbers of its replays.  Does not live here: recording and running (the driver), and graphs over
// a delegate driver, which are the delegate's own (createGraph() hands those out).
//
// The modes in which CUDA refuses calls that are unsafe beside a capture are all one here, the relaxed one: of those
// calls PyTorch makes only the allocators', which CUDA's allocator exempts as well.
#pragma once

#include "compat.h"
#include "driver/driver.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace simdev {

class Graph final : public compat::GraphImplInterface {
 public:
  explicit Graph(bool keepGraph) : keepGraph_(keepGraph) {}
  ~Graph() override;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // The methods throw as at::cuda::CUDAGraph does.

  // From the current stream of the current device, which must not be the default stream.
  void capture_begin(c10::MempoolId_t pool, compat::GraphCaptureMode mode) override;
  // Throws if the capture was invalidated.  Everything but the graph is as it was before it began then.
  void capture_end() override;
  void instantiate() override;
  // In the current stream of the device that the graph was captured on.
  void replay() override;
  void reset() override;
  c10::MempoolId_t pool() const override;
  void enable_debug_mode() override;
  void debug_dump(const std::string& path) override;

  // Numbers for an operator that is being captured; each replay draws them anew from `generator`.
  PhiloxState reserve(const GeneratorImpl::SharedState& generator, uint64_t increment);

 private:
  // What the captured work takes from one generator.
  struct CapturedGenerator {
    GeneratorImpl::SharedState generator;
    c10::DataPtr position; // a PhiloxPosition on the device, where each replay starts
    uint64_t used; // offsets
  };

  void endAllocation() noexcept;
  void dropGraph() noexcept;
  void dropInstance() noexcept;

  const bool keepGraph_;
  std::optional<Stream> stream_; // that the capture began on
  c10::MempoolId_t pool_{0, 0};
  uint64_t captureId_ = 0; // 0 unless it is capturing
  bool captured_ = false;
  GraphHandle graph_ = nullptr;
  GraphExecHandle instance_ = nullptr;
  std::mutex generatorsMutex_; // threads of one capture may draw at once
  std::vector<CapturedGenerator> generators_;
};

// The graph that the stream's work is captured into at the moment; nullptr for none.
Graph* capturingGraph(StreamHandle stream);

// A new id for a memory pool that graphs, or graphs and torch.simdev.MemPool, share.
c10::MempoolId_t newPoolId();

// A graph on the driver in use.  Throws NotImplementedError where the driver has a delegate without such graphs.
std::unique_ptr<compat::GraphImplInterface> createGraph(bool keepGraph);

// Tells PyTorch of it, under the name of the device, which must have been given before.
void registerGraphs();

} // namespace simdev
