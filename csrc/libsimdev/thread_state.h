// What the library knows about each thread.
//
// Plain data in static thread-local storage (initial-exec), because launches read it, and because the fault
// reporter reads it in a signal handler, where dynamic thread-local storage could allocate.
#pragma once

#include "simdev.h"

namespace sim {

class Stream;
struct Execution;

struct ThreadState {
  int device = 0; // simSetDevice
  simError_t lastError = simSuccess;
  bool detailGone = false; // the thread is ending, and the text of its last error with it
  Execution* execution = nullptr; // the device code that runs on this thread now; null outside of device code
};

extern constinit thread_local ThreadState thisThread __attribute__((tls_model("initial-exec")));

} // namespace sim
