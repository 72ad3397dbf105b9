// From the address of a block of device memory to the block: what a deleter, which is told the address, starts with.
//
// A radix tree over all devices' addresses, with an entry for the first 512 bytes of each block.  Look-ups take no
// lock.  Nodes are never freed: 32 KB for each 2 MB of address space in which a block ever began.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace simdev {

struct Block;

class BlockTable {
 public:
  // nullptr for an address at which no block begins.
  static Block* find(const void* address) noexcept {
    const auto bits = reinterpret_cast<uintptr_t>(address);
    if (bits >> kAddressBits != 0) {
      return nullptr;
    }
    const Middle* middle = root_[bits >> kMiddleShift].load(std::memory_order_acquire);
    const Leaf* leaf = middle == nullptr
                           ? nullptr
                           : (*middle)[bits >> kLeafShift & kMiddleMask].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr
                           : (*leaf)[bits >> kGranuleShift & kLeafMask].load(std::memory_order_acquire);
  }
  // Under the lock of the device whose address it is.  Throws std::bad_alloc, and for addresses that no driver has.
  static void set(const void* address, Block* block);
  static void clear(const void* address) noexcept;

 private:
  static constexpr unsigned kAddressBits = 48; // of user space
  static constexpr unsigned kGranuleShift = 9; // blocks begin at multiples of 512 bytes
  static constexpr unsigned kLeafShift = 21;
  static constexpr unsigned kMiddleShift = 34;
  static constexpr uintptr_t kLeafMask = (uintptr_t{1} << (kLeafShift - kGranuleShift)) - 1;
  static constexpr uintptr_t kMiddleMask = (uintptr_t{1} << (kMiddleShift - kLeafShift)) - 1;

  using Leaf = std::array<std::atomic<Block*>, kLeafMask + 1>;
  using Middle = std::array<std::atomic<Leaf*>, kMiddleMask + 1>;
  static std::array<std::atomic<Middle*>, size_t{1} << (kAddressBits - kMiddleShift)> root_;
};

} // namespace simdev
