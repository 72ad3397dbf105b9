// Operators whose results the host must see before it can go on, since their shapes or values depend on data.
#pragma once

#include "aten/plan.h"

#include <cstdint>

namespace simdev {

enum class KernelPlace : uint8_t {
  Device, // on the current stream, which the host waits for
  Host, // in the calling thread, when the current stream is done
};

// Replaces the operator's arguments on the stack with its results.
void runSynchronously(
    const OperatorPlan& plan,
    c10::Device device,
    KernelPlace place,
    torch::jit::Stack* stack);

// For operators with plan.learned: runs the kernel now, waiting for it, and remembers what it returned.
void runAndLearn(const OperatorPlan& plan, c10::Device device, torch::jit::Stack* stack);

} // namespace simdev
