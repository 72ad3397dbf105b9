// Getting memory from the driver and giving it back: segments, garbage collection, flush and retry, out of memory.
#include "runtime/allocator_sanitizer.h"
#include "runtime/device_memory.h"
#include "runtime/workspace.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace simdev {

using c10::CachingAllocator::format_size;

namespace {

constexpr c10::MempoolId_t kDefaultPool{0, 0};

size_t segmentSizeFor(size_t size, bool large) {
  if (!large) {
    return kSmallSegment;
  }
  return size < kMinLargeAlloc ? kLargeSegment : (size + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
}

std::mutex observersMutex;
std::vector<OutOfMemoryObserver>& observers() {
  static auto* list = new std::vector<OutOfMemoryObserver>(); // outlives every tensor
  return *list;
}

} // namespace

void attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> lock(observersMutex);
  observers().push_back(std::move(observer));
}

Block* DeviceMemory::grow(Request& request) {
  const size_t segmentSize = segmentSizeFor(request.size, request.large);
  const auto takeFreeLocked = [&] {
    std::lock_guard<SpinLock> guard(lock_);
    return takeFree(request);
  };
  {
    std::lock_guard<std::mutex> growth(growthMutex_);
    // Whoever had the mutex before may have freed what we need.
    if (Block* block = takeFreeLocked()) {
      return block;
    }
    collectGarbage(request);
    if (Block* block = addSegment(request, segmentSize)) {
      return block;
    }
    if (releaseOversize(request)) {
      if (Block* block = addSegment(request, segmentSize)) {
        return block;
      }
    }
    synchronizePendingFrees();
    if (Block* block = takeFreeLocked()) {
      return block;
    }
    const Workspace::Pause pause(device_);
    releaseCached(kDefaultPool);
    {
      std::lock_guard<SpinLock> guard(lock_);
      ++stats_.allocRetries;
    }
    if (Block* block = addSegment(request, segmentSize)) {
      return block;
    }
  }
  throwOutOfMemory(request);
}

Block* DeviceMemory::addSegment(Request& request, size_t size) {
  {
    std::lock_guard<SpinLock> guard(lock_);
    if (static_cast<size_t>(stats_.reservedBytes.current()) + size > reservable_) {
      return nullptr;
    }
  }
  void* pointer = driver().allocate(device_, size);
  if (pointer == nullptr) {
    return nullptr;
  }
  const bool poisoned = sanitize_ && request.pool == kDefaultPool && poison(pointer, size, request.stream);

  std::lock_guard<SpinLock> guard(lock_);
  BlockPool& pool = blockPool(request);
  Block* block = index_.addSegment(pool, pointer, size, request.large);
  block->poisoned = poisoned;
  stats_.segment.increase(request.large, 1);
  stats_.reservedBytes.increase(request.large, static_cast<int64_t>(size));
  ++stats_.deviceAllocs;
  if (size >= oversize_) {
    stats_.oversizeSegments.increase(1);
  }
  if (pool.owner != &defaultPool_) {
    privateReserved_[pool.owner->id].increase(request.large, static_cast<int64_t>(size));
  }
  trace(
      TraceAction::SegmentAlloc,
      reinterpret_cast<uintptr_t>(pointer),
      size,
      pool.stream,
      pool.owner->id,
      request.context);
  index_.cut(block, request.size, request.config);
  finishAllocation(block, request);
  return block;
}

void DeviceMemory::detachSegment(Block* block, std::vector<std::pair<void*, size_t>>& detached) {
  const BlockPool& pool = *block->pool;
  const auto size = static_cast<int64_t>(block->size);
  trace(
      TraceAction::SegmentFree,
      reinterpret_cast<uintptr_t>(block->pointer),
      block->size,
      pool.stream,
      pool.owner->id,
      nullptr);
  stats_.segment.decrease(block->large, 1);
  stats_.reservedBytes.decrease(block->large, size);
  ++stats_.deviceFrees;
  if (block->size >= oversize_) {
    stats_.oversizeSegments.decrease(1);
  }
  if (pool.owner != &defaultPool_) {
    privateReserved_[pool.owner->id].decrease(block->large, size);
  }
  detached.emplace_back(block->pointer, block->size);
  index_.removeSegment(block);
}

void DeviceMemory::returnToDriver(const std::vector<std::pair<void*, size_t>>& segments) noexcept {
  for (const auto& [pointer, size] : segments) {
    driver().deallocate(device_, pointer);
  }
}

void DeviceMemory::collectGarbage(const Request& request) {
  if (request.config.garbageCollectionThreshold <= 0) {
    return;
  }
  std::vector<std::pair<void*, size_t>> detached;
  {
    std::lock_guard<SpinLock> guard(lock_);
    if (reservable_ == std::numeric_limits<size_t>::max()) {
      return; // a share of what may be reserved: without set_per_process_memory_fraction() there is no limit
    }
    const auto limit =
        static_cast<int64_t>(request.config.garbageCollectionThreshold * static_cast<double>(reservable_));
    int64_t excess = stats_.reservedBytes.current() - limit;
    std::vector<Block*> candidates;
    for (auto& [stream, pool] : defaultPool_.streams) {
      BlockIndex::collectFreeSegments(*pool, /*large=*/true, candidates);
    }
    // Whatever was free for longest is least likely to be wanted soon.
    std::ranges::sort(candidates, {}, &Block::freedAt);
    for (Block* block : candidates) {
      if (excess <= 0) {
        break;
      }
      excess -= static_cast<int64_t>(block->size);
      detachSegment(block, detached);
    }
  }
  returnToDriver(detached);
}

bool DeviceMemory::releaseOversize(const Request& request) {
  if (request.config.maxSplitSize == std::numeric_limits<size_t>::max()) {
    return false;
  }
  std::vector<std::pair<void*, size_t>> detached;
  size_t released = 0;
  {
    std::lock_guard<SpinLock> guard(lock_);
    std::vector<Block*> candidates; // ascending in size
    BlockIndex::collectFreeSegments(blockPool(request), /*large=*/true, candidates);
    const size_t wanted = std::max(request.size, request.config.maxSplitSize);
    const auto enough = std::ranges::lower_bound(candidates, wanted, {}, &Block::size);
    if (enough != candidates.end()) {
      released = (*enough)->size;
      detachSegment(*enough, detached);
    } else {
      while (released < request.size && !candidates.empty() &&
             candidates.back()->size >= request.config.maxSplitSize) {
        released += candidates.back()->size;
        detachSegment(candidates.back(), detached);
        candidates.pop_back();
      }
    }
  }
  returnToDriver(detached);
  return released >= request.size;
}

void DeviceMemory::synchronizePendingFrees() {
  {
    std::lock_guard<SpinLock> guard(lock_);
    if (captures_ != nullptr) {
      return; // waiting would invalidate the capture
    }
    ++stats_.syncAllStreams;
  }
  std::lock_guard<std::mutex> events(eventMutex_);
  queueNewPendingFrees();
  std::exception_ptr error;
  for (auto& [stream, waiting] : pendingQueues_) {
    for (; !waiting.empty(); waiting.pop_front()) {
      const PendingFree& pending = waiting.front();
      try {
        if (pending.event != nullptr) {
          driver().synchronizeEvent(pending.event);
        } else {
          driver().synchronizeStream(stream);
        }
      } catch (...) { // failed work is finished work: the memory is free, the error is the caller's
        error = error != nullptr ? error : std::current_exception();
      }
      finishPendingFree(pending);
    }
  }
  pendingQueues_.clear();
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

void DeviceMemory::releaseCached(c10::MempoolId_t id) {
  if (id == kDefaultPool) {
    Workspace::instance().trim(device_);
  }
  std::vector<std::pair<void*, size_t>> detached;
  {
    std::lock_guard<SpinLock> guard(lock_);
    flushAll();
    std::vector<Block*> segments;
    const auto collect = [&](const MemoryPool& owner) {
      for (const auto& [stream, pool] : owner.streams) {
        BlockIndex::collectFreeSegments(*pool, /*large=*/false, segments);
        BlockIndex::collectFreeSegments(*pool, /*large=*/true, segments);
      }
    };
    if (id == kDefaultPool) {
      collect(defaultPool_);
    }
    for (const auto& [poolId, owner] : privatePools_) {
      if (poolId == id || (id == kDefaultPool && owner->useCount == 0)) {
        collect(*owner);
      }
    }
    for (Block* block : segments) {
      detachSegment(block, detached);
    }
    std::erase_if(privatePools_, [](const auto& pool) {
      return pool.second->useCount == 0 && pool.second->segments == 0;
    });
  }
  returnToDriver(detached);
}

void DeviceMemory::emptyCache(c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> growth(growthMutex_);
  std::exception_ptr error;
  try {
    synchronizePendingFrees();
  } catch (...) {
    error = std::current_exception();
  }
  releaseCached(pool);
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

void DeviceMemory::setMemoryFraction(double fraction) {
  TORCH_CHECK_VALUE(
      0 <= fraction && fraction <= 1, "Invalid fraction value: ", fraction, ". Allowed range: 0~1");
  const size_t total = driver().memoryInfo(device_).total;
  std::lock_guard<SpinLock> guard(lock_);
  fraction_ = fraction;
  reservable_ = static_cast<size_t>(fraction * static_cast<double>(total));
}

double DeviceMemory::memoryFraction() {
  std::lock_guard<SpinLock> guard(lock_);
  return fraction_;
}

void DeviceMemory::throwOutOfMemory(const Request& request) {
  const MemoryInfo info = driver().memoryInfo(device_);
  const std::string name = driver().deviceProperties(device_).name;
  int64_t allocated = 0;
  int64_t reserved = 0;
  int64_t allocatedPrivately = 0;
  size_t reservable = 0;
  {
    std::lock_guard<SpinLock> guard(lock_);
    ++stats_.ooms;
    trace(TraceAction::Oom, info.free, request.size, request.stream, request.pool, request.context);
    allocated = stats_.allocatedBytes.current();
    reserved = stats_.reservedBytes.current();
    reservable = reservable_;
    for (const auto& [address, first] : index_.segments()) {
      for (const Block* block = first; block != nullptr && first->pool->owner != &defaultPool_;
           block = block->next) {
        allocatedPrivately += block->state == BlockState::Allocated ? static_cast<int64_t>(block->size) : 0;
      }
    }
  }
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(request.size),
      allocated,
      reserved,
      c10::Device(c10::DeviceType::PrivateUse1, device_));
  std::vector<OutOfMemoryObserver> observing;
  {
    std::lock_guard<std::mutex> lock(observersMutex);
    observing = observers();
  }
  for (const OutOfMemoryObserver& observer : observing) {
    observer(device_, request.size, info.total, info.free);
  }
  const bool limited = reservable < info.total;
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      false,
      "simdev out of memory. Tried to allocate ",
      format_size(request.size),
      ". GPU ",
      static_cast<int>(device_),
      " (",
      name,
      ") has a total capacity of ",
      format_size(info.total),
      " of which ",
      format_size(info.free),
      " is free. ",
      limited ? format_size(reservable) + " allowed by set_per_process_memory_fraction(). " : "",
      "Of the allocated memory ",
      format_size(allocated),
      " is allocated by PyTorch, ",
      allocatedPrivately > 0
          ? "with " + format_size(allocatedPrivately) + " allocated in private pools (e.g., graphs), "
          : "",
      "and ",
      format_size(reserved - allocated),
      " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
      "SIMDEV_ALLOC_CONF=max_split_size_mb:<size> to avoid fragmentation. The capacity of a simulated device "
      "is set by "
      "SIMDEV_MEMORY_LIMIT.");
}

} // namespace simdev
