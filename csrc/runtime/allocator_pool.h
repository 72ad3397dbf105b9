// The bookkeeping of a device's memory: segments, the blocks they are cut into, and which of them are free.
//
// Lives here: best fit, splitting and merging, and the lists that serve small blocks of an exact size at once.  Does
// not live here: locking, streams' progress, talking to the driver (device_memory.cpp).  Nothing here locks or throws
// anything but std::bad_alloc; the caller holds the device's allocator lock.
#pragma once

#include "driver/driver.h"
#include "runtime/allocator_stats.h"

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

namespace simdev {

// Sizes as in CUDA's allocator, so that a program needs as much memory here as there.
inline constexpr size_t kMinBlockSize =
    c10::CachingAllocator::kMinBlockSize; // 512 B, every size is a multiple of it
inline constexpr size_t kSmallSize =
    c10::CachingAllocator::kSmallSize; // 1 MiB, the largest block of a small segment
inline constexpr size_t kSmallSegment = c10::CachingAllocator::kSmallBuffer; // 2 MiB
inline constexpr size_t kLargeSegment = 20 * 1024 * 1024; // for requests below kMinLargeAlloc
inline constexpr size_t kMinLargeAlloc = c10::CachingAllocator::kMinLargeAlloc; // 10 MiB
inline constexpr size_t kRoundLarge = c10::CachingAllocator::kRoundLarge; // 2 MiB, sizes of larger segments

// The settings of SIMDEV_ALLOC_CONF that concern device memory, read once per slow allocation.
struct AllocatorConfig {
  size_t maxSplitSize = std::numeric_limits<size_t>::max();
  size_t maxNonSplitRounding = 0;
  double garbageCollectionThreshold = 0;
  bool rounds = false; // roundup_power2_divisions is set

  static AllocatorConfig read();
  size_t roundSize(size_t bytes) const;
};

class DeviceMemory;
struct Block;
struct BlockPool;

struct BlockSizeKey {
  size_t size;
};
// Smallest first, then lowest address: the first block that is large enough is the best fit.
struct BlockOrder {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const noexcept;
  bool operator()(const Block* a, BlockSizeKey b) const noexcept;
  bool operator()(BlockSizeKey a, const Block* b) const noexcept;
};
using FreeSet = std::set<Block*, BlockOrder>;

struct StreamUse {
  StreamHandle stream;
  c10::DeviceIndex device;
  bool operator==(const StreamUse&) const = default;
};

enum class BlockState : uint8_t {
  Allocated,
  Pending, // freed, but work on another stream may still use it
  Cached, // in a list of blocks of exactly this size; not merged with its neighbours
  Free, // in a FreeSet, merged as far as possible
};

// A piece of a segment.  The first block of a segment is the same object for the segment's whole life.
struct Block {
  void* pointer = nullptr;
  size_t size = 0;
  size_t requested = 0; // bytes asked for; meaningful while allocated or pending
  BlockPool* pool = nullptr;
  DeviceMemory* memory = nullptr; // whose block it is; all that a deleter is told is the Block
  Block* nextCached = nullptr; // the list of Cached blocks, or of unused Block objects
  BlockState state = BlockState::Free;
  bool large = false;
  bool poisoned = false; // filled with the sanitizer's pattern
  int32_t pendingEvents = 0;
  std::vector<StreamUse> uses; // streams other than the pool's own, from record_stream
  std::shared_ptr<c10::GatheredContext> context; // where it was allocated, if history is recorded
  Block* previous = nullptr; // neighbours within the segment
  Block* next = nullptr;
  uint64_t freedAt = 0; // BlockIndex's clock when it became Free
  FreeSet::node_type node; // kept while not in a FreeSet, so that freeing allocates nothing

  bool isSplit() const noexcept { return previous != nullptr || next != nullptr; }
};

struct MemoryPool;

// The free blocks of one stream in one memory pool.
struct BlockPool {
  static constexpr size_t kClasses = kSmallSize / kMinBlockSize + 1;

  BlockPool(StreamHandle stream, MemoryPool* owner) : stream(stream), owner(owner) {}

  Block* popCached(size_t size) noexcept {
    Block*& head = cached[size / kMinBlockSize];
    Block* block = head;
    if (block != nullptr) {
      head = block->nextCached;
    }
    return block;
  }
  void pushCached(Block* block) noexcept {
    const size_t sizeClass = block->size / kMinBlockSize;
    Block*& head = cached[sizeClass];
    block->nextCached = head;
    head = block;
    block->state = BlockState::Cached;
    filled[sizeClass / 64] |= uint64_t{1} << sizeClass % 64;
  }

  StreamHandle stream;
  MemoryPool* owner;
  std::array<FreeSet, 2> free; // small, large
  // Last in, first out, by exact size.  Merging them with their neighbours waits until something misses here.
  std::array<Block*, kClasses> cached{};
  std::array<uint64_t, kClasses / 64 + 1> filled{}; // a bit per list that was pushed to since the last flush
};

// The default pool, or a private one (graphs, torch.simdev.MemPool).
struct MemoryPool {
  explicit MemoryPool(c10::MempoolId_t id) : id(id) {}

  BlockPool& ofStream(StreamHandle stream);

  c10::MempoolId_t id;
  int useCount = 0; // private pools: 0 means that empty_cache() may take its memory
  size_t segments = 0;
  std::unordered_map<StreamHandle, std::unique_ptr<BlockPool>> streams;
};

class BlockIndex {
 public:
  BlockIndex(DeviceMemory& memory, AllocatorStats& stats) : memory_(memory), stats_(stats) {}

  // A new segment as one block that is not in any list; the caller gives it out or releases it.
  Block* addSegment(BlockPool& pool, void* pointer, size_t size, bool large);
  // A Free block that is a whole segment leaves the books.
  void removeSegment(Block* block);

  // The best fitting Free block of the pool, cut to size where the rules allow, or nullptr.
  Block* take(BlockPool& pool, bool large, size_t size, const AllocatorConfig& config);
  // Cuts a block that is in no list and puts the rest into the pool.
  void cut(Block* block, size_t size, const AllocatorConfig& config);
  // Puts a block that is in no list into its pool's FreeSet, merged with its free neighbours.
  void release(Block* block);
  // Releases all Cached blocks of the pool.
  void flush(BlockPool& pool);

  // Whole free segments of the pool.  Call flush() first.
  static void collectFreeSegments(const BlockPool& pool, bool large, std::vector<Block*>& result);

  // First blocks of all segments, by address.
  const std::map<uintptr_t, Block*>& segments() const noexcept { return segments_; }
  // Goes up with every search of a FreeSet; ages of free blocks are counted in it.
  uint64_t clock() const noexcept { return clock_; }

 private:
  struct SplitDelta {
    int64_t blocks = 0;
    int64_t bytes = 0;
    void add(const Block* block, int64_t sign) noexcept;
  };

  Block* newBlock();
  void recycle(Block* block);
  void insert(Block* block);
  void extract(Block* block);
  void absorbNext(Block* block);
  void cut(Block* block, size_t size, const AllocatorConfig& config, SplitDelta& delta);
  void apply(const SplitDelta& delta, bool large);

  DeviceMemory& memory_;
  AllocatorStats& stats_;
  std::deque<Block> arena_; // every Block ever made; unused ones are linked from spare_
  Block* spare_ = nullptr;
  std::map<uintptr_t, Block*> segments_;
  uint64_t clock_ = 0;
};

} // namespace simdev
