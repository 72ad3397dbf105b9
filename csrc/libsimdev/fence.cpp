// The expensive half of the two-sided fence.
#include "fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sim {

void AsymmetricFence::prepare() noexcept {
  // Not there on kernels before 4.14, and in some sandboxes.
  available_ = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void AsymmetricFence::heavy() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (available_) {
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  }
}

} // namespace sim
