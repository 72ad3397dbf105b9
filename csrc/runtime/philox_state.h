// Where a random operator's numbers come from, as plain data that a kernel's arguments can hold.
//
// Reading a PhiloxState is the kernel's business (aten/native/philox.h), since only code on the device can.
#pragma once

#include <cstdint>

namespace simdev {

// A place in a sequence of random numbers: all that a generator is.
struct PhiloxPosition {
  uint64_t seed = 0;
  uint64_t offset = 0; // a multiple of 4: Philox makes four 32-bit numbers a step
};

// The position that one operator call starts at.  While a graph is captured it is not known yet, since every replay starts
// where the generator is by then: `replay` points to device memory that holds that, and `start` counts from there.
struct PhiloxState {
  PhiloxPosition start;
  const PhiloxPosition* replay = nullptr;
};

} // namespace simdev
