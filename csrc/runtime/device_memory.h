// The memory of one device as the caching allocator manages it: stream-ordered reuse, growth, running out.
//
// Lives here: locking, the fast path, blocks that other streams still use, segments from the driver.  Does not live here:
// cutting and merging blocks (allocator_pool.h), PyTorch's allocator interface (caching_allocator.h).
//
// Locks.  lock_ guards the books and is held for some tens of nanoseconds: never across a call into the driver, into
// Python, or of anything that may free a tensor.  growthMutex_ serialises whoever asks the driver for memory or gives
// it back, eventMutex_ whoever asks events; free() takes neither, so work on the device can always finish.  Order:
// growthMutex_, eventMutex_, lock_.
#pragma once

#include "runtime/allocator_pool.h"
#include "runtime/allocator_trace.h"

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace simdev {

// Called with the device, the bytes asked for, the device's capacity and its free bytes, before OutOfMemoryError is thrown;
// without any lock held.  Observers stay for the life of the process.
using OutOfMemoryObserver = std::function<void(c10::DeviceIndex, size_t, size_t, size_t)>;
void attachOutOfMemoryObserver(OutOfMemoryObserver observer);

// Held for less time than it takes to put a thread to sleep.
class SpinLock {
 public:
  void lock() noexcept {
    if (C10_UNLIKELY(held_.exchange(true, std::memory_order_acquire))) {
      lockContended();
    }
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  void lockContended() noexcept;
  std::atomic<bool> held_{false};
};

class DeviceMemory {
 public:
  DeviceMemory(c10::DeviceIndex device, bool sanitize);

  c10::DeviceIndex device() const noexcept { return device_; }

  // Memory for work on `stream`.  Throws c10::OutOfMemoryError.  bytes > 0.
  Block* allocate(size_t bytes, StreamHandle stream) {
    {
      std::lock_guard<SpinLock> guard(lock_);
      if (C10_LIKELY(slowAllocation_ == 0 && bytes <= kSmallSize)) {
        const size_t size = (bytes + kMinBlockSize - 1) / kMinBlockSize * kMinBlockSize;
        if (BlockPool* pool = knownPool(stream); C10_LIKELY(pool != nullptr)) {
          if (Block* block = pool->popCached(size); C10_LIKELY(block != nullptr)) {
            giveOut(block, bytes);
            return block;
          }
        }
      }
    }
    return allocateSlow(bytes, stream);
  }

  void free(Block* block) noexcept {
    {
      std::lock_guard<SpinLock> guard(lock_);
      if (C10_LIKELY(slowFree_ == 0 && block->uses.empty())) {
        countFreed(block);
        countInactive(block);
        putBack(block);
        return;
      }
    }
    freeSlow(block);
  }

  // Keeps the block from reuse after its free until work that `stream` has by then is done.
  void recordStream(Block* block, StreamUse use);
  bool isAllocated(const Block* block);

  // Gives free segments back to the driver: those of one private pool, or ({0, 0}) of the default pool and all private
  // pools that nobody holds.  Waits for blocks that other streams still use.
  void emptyCache(c10::MempoolId_t pool);

  c10::CachingDeviceAllocator::DeviceStats stats();
  void resetAccumulatedStats();
  void resetPeakStats();
  // {allocated, reserved} bytes.
  std::pair<size_t, size_t> usage();

  // The share of the device's capacity that may be reserved; 0 <= fraction <= 1.
  void setMemoryFraction(double fraction);
  double memoryFraction();

  // Private pools.  While one is begun, allocations for streams that the filter accepts come from it.
  using StreamFilter = std::function<bool(StreamHandle)>;
  void beginAllocateToPool(c10::MempoolId_t id, StreamFilter filter);
  void endAllocateToPool(c10::MempoolId_t id);
  void retainPool(c10::MempoolId_t id);
  void releasePool(c10::MempoolId_t id);
  int poolUseCount(c10::MempoolId_t id);

  void setHistory(const HistorySettings& settings, bool clear);
  // Adds to `result`; `pool` limits the segments to one memory pool.
  void snapshot(MemorySnapshot& result, std::optional<c10::MempoolId_t> pool, bool includeTraces);
  std::shared_ptr<c10::GatheredContext> contextOf(const Block* block);

 private:
  // Why an allocation or a free cannot take the fast path.
  enum SlowReason : uint32_t {
    kHistory = 1, // allocation, free
    kSanitizer = 2, // allocation, free
    kPrivatePools = 4, // allocation: some stream allocates to a private pool
    kPendingFrees = 8, // allocation: events may have completed
    kRounding = 16, // allocation: sizes are not simply multiples of 512
  };

  struct Request {
    size_t bytes;
    size_t size; // rounded
    bool large;
    StreamHandle stream;
    c10::MempoolId_t pool;
    AllocatorConfig config;
    std::shared_ptr<c10::GatheredContext> context;
  };

  struct PendingFree {
    StreamUse use;
    EventHandle event; // nullptr if it could not be recorded: then the stream itself is asked
    Block* block;
  };

  struct Capture {
    c10::MempoolId_t pool;
    StreamFilter filter;
  };

  // Direct-mapped: a handle finds its pool without hashing into MemoryPool::streams.
  struct PoolCacheEntry {
    StreamHandle stream = nullptr;
    BlockPool* pool = nullptr;
  };
  static constexpr size_t kPoolCacheSize = 32;
  static size_t poolCacheSlot(StreamHandle stream) noexcept {
    const auto bits = reinterpret_cast<uintptr_t>(stream);
    return (bits >> 4 ^ bits >> 9 ^ bits >> 14) % kPoolCacheSize;
  }

  // --- Under lock_ ---
  BlockPool* knownPool(StreamHandle stream) noexcept {
    const PoolCacheEntry& entry = poolCache_[poolCacheSlot(stream)];
    return C10_LIKELY(entry.stream == stream) ? entry.pool : nullptr;
  }
  void giveOut(Block* block, size_t bytes) noexcept {
    const auto size = static_cast<int64_t>(block->size);
    block->state = BlockState::Allocated;
    block->requested = bytes;
    stats_.allocation.increase(block->large, 1);
    stats_.allocatedBytes.increase(block->large, size);
    stats_.requestedBytes.increase(block->large, static_cast<int64_t>(bytes));
    stats_.active.increase(block->large, 1);
    stats_.activeBytes.increase(block->large, size);
  }
  void countFreed(Block* block) noexcept {
    stats_.allocation.decrease(block->large, 1);
    stats_.allocatedBytes.decrease(block->large, static_cast<int64_t>(block->size));
    stats_.requestedBytes.decrease(block->large, static_cast<int64_t>(block->requested));
    if (C10_UNLIKELY(block->size >= oversize_)) {
      stats_.oversizeAllocations.decrease(1);
    }
  }
  void countInactive(Block* block) noexcept {
    stats_.active.decrease(block->large, 1);
    stats_.activeBytes.decrease(block->large, static_cast<int64_t>(block->size));
  }
  void putBack(Block* block) noexcept {
    if (C10_LIKELY(!block->large)) {
      block->pool->pushCached(block);
    } else {
      index_.release(block);
    }
  }
  void setSlow(SlowReason reason, bool on) noexcept;
  MemoryPool& memoryPool(c10::MempoolId_t id);
  BlockPool& blockPool(const Request& request);
  Block* takeFree(Request& request);
  void finishAllocation(Block* block, Request& request);
  void flushAll();
  void trace(
      TraceAction action,
      uintptr_t address,
      size_t size,
      StreamHandle stream,
      c10::MempoolId_t pool,
      std::shared_ptr<c10::GatheredContext> context);
  void traceBlock(TraceAction action, const Block* block, std::shared_ptr<c10::GatheredContext> context);
  void completeFree(Block* block);
  void detachSegment(Block* block, std::vector<std::pair<void*, size_t>>& detached);

  // --- Without lock_ ---
  Block* allocateSlow(size_t bytes, StreamHandle stream);
  void freeSlow(Block* block) noexcept;
  std::shared_ptr<c10::GatheredContext> gatherContext(HistorySettings::Context when);
  c10::MempoolId_t choosePool(StreamHandle stream);
  void recordUses(Block* block, const std::vector<StreamUse>& uses) noexcept;
  EventHandle recordEvent(const StreamUse& use);
  void queueNewPendingFrees(); // under eventMutex_
  static bool isDone(const PendingFree& pending) noexcept;
  void processPendingFrees() noexcept;
  void finishPendingFree(const PendingFree& pending) noexcept;

  // --- Growth (device_memory_growth.cpp), under growthMutex_ unless said otherwise ---
  Block* grow(Request& request); // takes growthMutex_
  Block* addSegment(Request& request, size_t size);
  void collectGarbage(const Request& request);
  bool releaseOversize(const Request& request);
  void releaseCached(c10::MempoolId_t pool);
  void synchronizePendingFrees();
  void returnToDriver(const std::vector<std::pair<void*, size_t>>& segments) noexcept;
  [[noreturn]] void throwOutOfMemory(const Request& request); // without growthMutex_

  // What the fast path touches comes first.
  SpinLock lock_;
  uint32_t slowAllocation_ = 0; // SlowReasons that are in force
  uint32_t slowFree_ = 0;
  size_t oversize_ = std::numeric_limits<size_t>::max(); // max_split_size as last read
  std::array<PoolCacheEntry, kPoolCacheSize> poolCache_{};
  AllocatorStats stats_;

  const c10::DeviceIndex device_;
  const bool sanitize_;
  BlockIndex index_{*this, stats_};
  MemoryPool defaultPool_{{0, 0}};
  std::map<c10::MempoolId_t, std::unique_ptr<MemoryPool>> privatePools_;
  std::map<c10::MempoolId_t, Metric> privateReserved_; // outlives the pools
  std::shared_ptr<const std::vector<Capture>> captures_; // replaced, not changed: read outside the lock
  double fraction_ = 1.0;
  size_t reservable_ = std::numeric_limits<size_t>::max(); // bytes allowed by fraction_, or no limit

  HistorySettings history_;
  TraceRing traceRing_;

  std::vector<PendingFree> newPendingFrees_; // recorded since the queues were last looked at
  size_t pendingFrees_ = 0; // in newPendingFrees_ and in pendingQueues_
  std::vector<Block*> deferredFrees_; // their events cannot be recorded while a capture is under way
  std::vector<std::pair<c10::DeviceIndex, EventHandle>> idleEvents_;

  std::mutex eventMutex_;
  std::unordered_map<StreamHandle, std::deque<PendingFree>> pendingQueues_; // guarded by eventMutex_
  std::mutex growthMutex_;
};

} // namespace simdev
