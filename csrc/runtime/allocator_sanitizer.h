// SIMDEV_MEMORY_SANITIZER: free device memory is filled with a pattern, and whether it still is, is checked at reuse.
//
// What reads memory after its free sees NaN (every float format) or -1; what writes it is reported, as a rule because a
// tensor was used on a second stream without record_stream.  Does not live here: when blocks are free (device_memory.cpp).
#pragma once

#include "driver/driver.h"

namespace simdev {

// Fills the block, in stream order.  False if that failed: then nothing may be concluded from its contents.
bool poison(void* pointer, size_t size, StreamHandle stream) noexcept;

// Checks the pattern, in stream order; the error surfaces at the stream's next synchronisation.  Does nothing where the
// host cannot run code on the device's memory (GPU drivers).
void checkPoison(c10::DeviceIndex device, void* pointer, size_t size, StreamHandle stream);

} // namespace simdev
