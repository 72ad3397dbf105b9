// The randomness of one operator call, taken from a simdev generator.
//
// Every random operator is a pure function of the PhiloxState that it reserves when it is called.  Native kernels
// (native/random_kernels.h) compute with that state; ATen's own kernels get a generator made from it.
#pragma once

#include "runtime/generator.h"

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace simdev {

// A fresh generator of the kernels' device type, its whole state a function of `state`.  To be called by the work itself
// when it runs on the device: a captured graph runs it again, and draws other numbers.
at::Generator kernelGenerator(const PhiloxState& state, c10::DeviceIndex index);

} // namespace simdev
