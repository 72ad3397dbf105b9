// Best fit, splitting and merging.  See allocator_pool.h.
#include "runtime/allocator_pool.h"

#include "runtime/block_table.h"

#include <c10/util/llvmMathExtras.h>

#include <bit>
#include <functional>
#include <utility>

namespace simdev {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

AllocatorConfig AllocatorConfig::read() {
  AllocatorConfig config;
  config.maxSplitSize = AcceleratorAllocatorConfig::max_split_size();
  config.maxNonSplitRounding = AcceleratorAllocatorConfig::max_non_split_rounding_size();
  config.garbageCollectionThreshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  for (const size_t divisions : AcceleratorAllocatorConfig::roundup_power2_divisions()) {
    config.rounds |= divisions > 1;
  }
  return config;
}

size_t AllocatorConfig::roundSize(size_t bytes) const {
  const size_t size = (bytes + kMinBlockSize - 1) / kMinBlockSize * kMinBlockSize;
  if (!rounds) {
    return size;
  }
  const size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(bytes);
  if (divisions <= 1 || bytes <= kMinBlockSize * divisions) {
    return size;
  }
  // The next multiple of a 1/divisions part of the power of two below.
  const size_t step = (size_t{1} << c10::llvm::Log2_64(bytes)) / divisions;
  return (bytes + step - 1) / step * step;
}

bool BlockOrder::operator()(const Block* a, const Block* b) const noexcept {
  return a->size != b->size ? a->size < b->size : std::less<void*>()(a->pointer, b->pointer);
}
bool BlockOrder::operator()(const Block* a, BlockSizeKey b) const noexcept {
  return a->size < b.size;
}
bool BlockOrder::operator()(BlockSizeKey a, const Block* b) const noexcept {
  return a.size < b->size;
}

BlockPool& MemoryPool::ofStream(StreamHandle stream) {
  std::unique_ptr<BlockPool>& pool = streams[stream];
  if (pool == nullptr) {
    pool = std::make_unique<BlockPool>(stream, this);
  }
  return *pool;
}

// What a free block counts for in inactive_split.  Changes are summed up over one operation and applied at the end, so
// that a block that grows by a merge is one change and not a removal and an addition.
void BlockIndex::SplitDelta::add(const Block* block, int64_t sign) noexcept {
  if (block->isSplit()) {
    blocks += sign;
    bytes += sign * static_cast<int64_t>(block->size);
  }
}

void BlockIndex::apply(const SplitDelta& delta, bool large) {
  stats_.inactiveSplit.change(large, delta.blocks);
  stats_.inactiveSplitBytes.change(large, delta.bytes);
}

Block* BlockIndex::newBlock() {
  if (spare_ == nullptr) {
    Block& block = arena_.emplace_back();
    block.memory = &memory_;
    return &block;
  }
  Block* block = spare_;
  spare_ = block->nextCached;
  return block;
}

void BlockIndex::recycle(Block* block) {
  BlockTable::clear(block->pointer);
  block->pool = nullptr;
  block->previous = block->next = nullptr;
  block->context.reset();
  block->nextCached = spare_;
  spare_ = block;
}

void BlockIndex::insert(Block* block) {
  FreeSet& free = block->pool->free[block->large];
  block->state = BlockState::Free;
  block->freedAt = clock_;
  if (block->node.empty()) {
    free.insert(block);
  } else {
    block->node.value() = block;
    free.insert(std::move(block->node));
  }
}

void BlockIndex::extract(Block* block) {
  block->node = block->pool->free[block->large].extract(block);
}

Block* BlockIndex::addSegment(BlockPool& pool, void* pointer, size_t size, bool large) {
  Block* block = newBlock();
  block->pointer = pointer;
  block->size = size;
  block->pool = &pool;
  block->large = large;
  block->poisoned = false;
  BlockTable::set(pointer, block);
  segments_.emplace(reinterpret_cast<uintptr_t>(pointer), block);
  ++pool.owner->segments;
  return block;
}

void BlockIndex::removeSegment(Block* block) {
  extract(block);
  segments_.erase(reinterpret_cast<uintptr_t>(block->pointer));
  --block->pool->owner->segments;
  recycle(block);
}

Block* BlockIndex::take(BlockPool& pool, bool large, size_t size, const AllocatorConfig& config) {
  ++clock_;
  FreeSet& free = pool.free[large];
  const auto found = free.lower_bound(BlockSizeKey{size});
  if (found == free.end()) {
    return nullptr;
  }
  Block* block = *found;
  if (large) {
    // A block above the split limit is not spent on a smaller request, nor on one much smaller than itself.
    const bool oversize = size >= config.maxSplitSize;
    if ((!oversize && block->size >= config.maxSplitSize) ||
        (oversize && block->size - size >= config.maxNonSplitRounding)) {
      return nullptr;
    }
  }
  SplitDelta delta;
  delta.add(block, -1);
  extract(block);
  cut(block, size, config, delta);
  apply(delta, large);
  return block;
}

void BlockIndex::cut(Block* block, size_t size, const AllocatorConfig& config) {
  SplitDelta delta;
  cut(block, size, config, delta);
  apply(delta, block->large);
}

void BlockIndex::cut(Block* block, size_t size, const AllocatorConfig& config, SplitDelta& delta) {
  const size_t rest = block->size - size;
  if (block->large ? rest <= kSmallSize || size >= config.maxSplitSize : rest < kMinBlockSize) {
    return;
  }
  Block* remainder = newBlock();
  remainder->pointer = static_cast<char*>(block->pointer) + size;
  BlockTable::set(remainder->pointer, remainder);
  remainder->size = rest;
  remainder->pool = block->pool;
  remainder->large = block->large;
  remainder->poisoned = block->poisoned;
  remainder->previous = block;
  remainder->next = block->next;
  if (block->next != nullptr) {
    block->next->previous = remainder;
  }
  block->next = remainder;
  block->size = size;
  insert(remainder);
  delta.add(remainder, 1);
}

void BlockIndex::absorbNext(Block* block) {
  Block* next = block->next;
  block->size += next->size;
  block->poisoned &= next->poisoned;
  block->next = next->next;
  if (block->next != nullptr) {
    block->next->previous = block;
  }
  recycle(next);
}

void BlockIndex::release(Block* block) {
  const bool large = block->large;
  SplitDelta delta;
  if (Block* next = block->next; next != nullptr && next->state == BlockState::Free) {
    delta.add(next, -1);
    extract(next);
    absorbNext(block);
  }
  if (Block* previous = block->previous; previous != nullptr && previous->state == BlockState::Free) {
    delta.add(previous, -1);
    extract(previous);
    absorbNext(previous);
    block = previous;
  }
  insert(block);
  delta.add(block, 1);
  apply(delta, large);
}

void BlockIndex::flush(BlockPool& pool) {
  for (size_t word = 0; word < pool.filled.size(); ++word) {
    for (uint64_t bits = std::exchange(pool.filled[word], 0); bits != 0; bits &= bits - 1) {
      Block*& head = pool.cached[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
      while (head != nullptr) {
        Block* block = head;
        head = block->nextCached;
        release(block);
      }
    }
  }
}

void BlockIndex::collectFreeSegments(const BlockPool& pool, bool large, std::vector<Block*>& result) {
  for (Block* block : pool.free[large]) {
    if (!block->isSplit()) {
      result.push_back(block);
    }
  }
}

} // namespace simdev
