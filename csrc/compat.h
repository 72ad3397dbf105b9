// Differences between the PyTorch versions this builds against (2.11 to 2.14), and private PyTorch APIs of
// the C++ side.  Each entry says which limitation or version it is for.  Does not live here: anything about
// Python (torch_simdev/compat.py).
#pragma once

#include <c10/macros/Export.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <exception>
#include <string>

#define SIMDEV_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// Virtual methods of c10's device guard that arrived after 2.11; overriding them there would not compile.
#define SIMDEV_HAS_STREAM_IS_CAPTURING SIMDEV_TORCH_AT_LEAST(2, 12)
// torch.accelerator.Graph, and the registry of its implementations, arrived after 2.11.
#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define SIMDEV_HAS_ACCELERATOR_GRAPH 1
#else
#include <c10/core/Allocator.h>
#define SIMDEV_HAS_ACCELERATOR_GRAPH 0
#endif

// oneDNN's product of matrices, out = beta * out + alpha * a @ b.  ATen exports the function, and ships no declaration.
namespace at {
class Tensor;
namespace native {
TORCH_API void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& out, float beta, float alpha);
} // namespace native
} // namespace at

namespace simdev::compat {

// Graphs, as torch.accelerator.Graph has them; earlier versions have our own Python class alone.
#if SIMDEV_HAS_ACCELERATOR_GRAPH
using at::GraphCaptureMode;
using at::GraphImplInterface;
#else
enum class GraphCaptureMode : int8_t { Default, Global, ThreadLocal, Relaxed };
struct GraphImplInterface {
  virtual ~GraphImplInterface() = default;
  virtual void capture_begin(c10::MempoolId_t pool, GraphCaptureMode mode) = 0;
  virtual void capture_end() = 0;
  virtual void instantiate() = 0;
  virtual void replay() = 0;
  virtual void reset() = 0;
  virtual c10::MempoolId_t pool() const = 0;
  virtual void enable_debug_mode() = 0;
  virtual void debug_dump(const std::string& path) = 0;
};
#endif

// c10::Error::what() carries a C++ backtrace where TORCH_SHOW_CPP_STACKTRACES asks for one; this never does.
inline std::string message(const std::exception& error) {
  const auto* torchError = dynamic_cast<const c10::Error*>(&error);
  return torchError != nullptr ? torchError->what_without_backtrace() : error.what();
}

// Reserved bytes by private pool joined the allocator's statistics after 2.11; earlier versions have nowhere
// to show them.
template <class Stats, class PoolId, class StatArray>
void setPrivatePoolReserved(Stats& stats, const PoolId& pool, const StatArray& reserved) {
  if constexpr (requires { stats.reserved_bytes_by_private_pools; }) {
    stats.reserved_bytes_by_private_pools[pool] = reserved;
  }
}
template <class Stats, class Function>
void forEachPrivatePoolReserved(const Stats& stats, Function&& function) {
  if constexpr (requires { stats.reserved_bytes_by_private_pools; }) {
    for (const auto& [pool, reserved] : stats.reserved_bytes_by_private_pools) {
      function(pool, reserved);
    }
  }
}

} // namespace simdev::compat
