// Growth of the table of blocks.  See block_table.h.
#include "runtime/block_table.h"

#include <c10/util/Exception.h>

#include <memory>

namespace simdev {

constinit decltype(BlockTable::root_) BlockTable::root_{};

namespace {

// The node behind the slot, made if it is not there.  Allocators of two devices may want the same one at once.
template <class Node>
Node& ensure(std::atomic<Node*>& slot) {
  Node* node = slot.load(std::memory_order_acquire);
  if (node == nullptr) {
    auto made = std::make_unique<Node>();
    if (slot.compare_exchange_strong(node, made.get(), std::memory_order_acq_rel)) {
      node = made.release();
    }
  }
  return *node;
}

} // namespace

void BlockTable::set(const void* address, Block* block) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  TORCH_INTERNAL_ASSERT(
      bits >> kAddressBits == 0 && bits % (uintptr_t{1} << kGranuleShift) == 0,
      "the driver returned device memory at ",
      address,
      ", which is not aligned to 512 bytes or not below 2^48");
  Leaf& leaf = ensure(ensure(root_[bits >> kMiddleShift])[bits >> kLeafShift & kMiddleMask]);
  leaf[bits >> kGranuleShift & kLeafMask].store(block, std::memory_order_release);
}

void BlockTable::clear(const void* address) noexcept {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  const Middle& middle = *root_[bits >> kMiddleShift].load(std::memory_order_acquire);
  Leaf& leaf = *middle[bits >> kLeafShift & kMiddleMask].load(std::memory_order_acquire);
  leaf[bits >> kGranuleShift & kLeafMask].store(nullptr, std::memory_order_release);
}

} // namespace simdev
