// The randomness of one operator call, taken from a simdev generator.
//
// Every random operator is a pure function of the PhiloxState that it reserves when it is called.  Native kernels
// (native/random_kernels.h) compute with that state; ATen's own kernels get a generator made from it.
#pragma once

#include "runtime/generator.h"

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace simdev {

// A fresh generator of the kernels' device type, its whole state a function of `state`.
at::Generator kernelGenerator(const PhiloxState& state, c10::DeviceIndex index);

// The generator to hand to an ATen kernel in place of the operator's generator argument.  Takes `increment` numbers from
// `generator`, or from the device's default generator.  Throws unless `generator` is one of `device`'s.
at::Generator
kernelGenerator(const std::optional<at::Generator>& generator, c10::Device device, uint64_t increment);

} // namespace simdev
