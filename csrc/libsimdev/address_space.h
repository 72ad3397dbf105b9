// Where devices' memory lies in the process: inaccessible windows, and memory at a constant offset from each.
//
// With D devices and windows of W bytes, one reservation of address space is divided like this:
//
//   | window 0 .. window D-1 |  D slots  |  D slots  | ... |  D slots  |       every slot is W bytes
//   ^ base                     row 0       row 1             row D-1
//
// The memory of device i is slot i of row i.  Hence its offset from the window is (i + 1) * D * W, and adding
// that offset to another device's window j leads to slot j of row i: no memory there either.  So device code
// that applies its own offset to a pointer of another device faults, exactly like host code that uses a
// device pointer.  Untouched address space costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "config.h"

namespace sim {

class AddressSpace {
 public:
  // Throws Failure(simErrorInitializationError) when the address space cannot be reserved.
  explicit AddressSpace(const Config& config);
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;
  // Never unmapped: device pointers must go on faulting until the process ends.

  size_t windowSize() const noexcept { return size_t{1} << shift_; }
  uintptr_t window(int device) const noexcept { return base_ + (static_cast<uintptr_t>(device) << shift_); }
  uintptr_t offset(int device) const noexcept {
    return static_cast<uintptr_t>((device + 1) * count_) << shift_;
  }
  // The device whose window the address lies in, or -1.
  int deviceOf(const void* pointer) const noexcept {
    const uintptr_t slot = (reinterpret_cast<uintptr_t>(pointer) - base_) >> shift_;
    return slot < static_cast<uintptr_t>(count_) ? static_cast<int>(slot) : -1;
  }

  // What an address behind the windows is: `device` looked for window + `at` of device `owner` with its own
  // offset.
  struct Image {
    int device = -1;
    int owner = -1;
    uintptr_t pointer = 0; // the device pointer that was translated
  };
  // image.device is -1 for addresses that are not behind the windows.
  Image imageOf(uintptr_t address) const noexcept;

 private:
  uintptr_t base_ = 0;
  int shift_ = 0; // log2 of the window size
  int count_ = 0;
};

// Reserves inaccessible address space, aligned to kGranule; 0 when there is none.
uintptr_t reserveAddresses(size_t bytes) noexcept;

} // namespace sim
