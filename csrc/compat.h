// Differences between the PyTorch versions this builds against (2.11 to 2.14), and private PyTorch APIs of
// the C++ side.  Each entry says which limitation or version it is for.  Does not live here: anything about
// Python (torch_simdev/compat.py).
#pragma once

#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <exception>
#include <string>

#define SIMDEV_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// Virtual methods of c10's device guard that arrived after 2.11; overriding them there would not compile.
#define SIMDEV_HAS_STREAM_IS_CAPTURING SIMDEV_TORCH_AT_LEAST(2, 12)
// torch.accelerator.Graph, and the registry of its implementations, arrived after 2.11.
#define SIMDEV_HAS_ACCELERATOR_GRAPH SIMDEV_TORCH_AT_LEAST(2, 12)

namespace simdev::compat {

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
