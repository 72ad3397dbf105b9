// The device code that is running, as seen by that code: where its failure goes.
//
// One Execution belongs to each stream; the compute threads that help with a launch point at the same one.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <utility>

#include "simdev.h"
#include "thread_state.h"

namespace sim {

struct Execution {
  // The first message of a command counts.
  void fail(const char* text) noexcept;
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  // The message, and ready for the next command.
  std::string takeMessage() noexcept;

 private:
  std::atomic<bool> claimed_{false};
  std::atomic<bool> failed_{false};
  std::string message_;
};

// Runs user code as device code of the execution: what it throws becomes the execution's failure.
template <class Body>
void runDeviceCode(Execution& execution, Body&& body) noexcept {
  Execution* const outer = std::exchange(thisThread.execution, &execution);
  try {
    body();
  } catch (const std::exception& error) {
    execution.fail(error.what());
  } catch (...) {
    execution.fail("an exception that is not a std::exception");
  }
  thisThread.execution = outer;
}

// A failure of device code on its way to the caller that will be told.
struct AsyncError {
  simError_t code;
  std::string detail; // "kernel name: message"
};

} // namespace sim
