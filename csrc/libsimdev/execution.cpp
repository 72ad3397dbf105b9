// The failure of the device code that is running.
#include "execution.h"

#include <utility>

namespace sim {

void Execution::fail(const char* text) noexcept {
  if (claimed_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  try {
    message_ = text != nullptr ? text : "";
  } catch (...) { // no memory for the message: the failure still counts
  }
  failed_.store(true, std::memory_order_release);
}

std::string Execution::takeMessage() noexcept {
  std::string message = std::move(message_);
  message_.clear();
  failed_.store(false, std::memory_order_relaxed);
  claimed_.store(false, std::memory_order_relaxed);
  return message;
}

} // namespace sim

void simKernelFail(const char* message) {
  if (sim::Execution* const execution = sim::thisThread.execution) {
    execution->fail(message);
  }
}
