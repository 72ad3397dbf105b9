// Allocation and free beyond the fast path, blocks that several streams use, private pools, statistics and history.
#include "runtime/device_memory.h"

#include "compat.h"
#include "runtime/allocator_sanitizer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace simdev {

namespace {

constexpr size_t kOneExabyte = size_t{1} << 60;
constexpr c10::MempoolId_t kDefaultPool{0, 0};

int64_t microsecondsSinceEpoch() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

} // namespace

void SpinLock::lockContended() noexcept {
  for (unsigned round = 0;; ++round) {
    // Only look until it is free: a failed exchange would take the cache line away from the holder.
    for (int spin = 0; spin < 100 && held_.load(std::memory_order_relaxed); ++spin) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
    if (!held_.exchange(true, std::memory_order_acquire)) {
      return;
    }
    // The holder was preempted, perhaps by us.
    if (round < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

DeviceMemory::DeviceMemory(c10::DeviceIndex device, bool sanitize) : device_(device), sanitize_(sanitize) {
  setSlow(kSanitizer, sanitize);
}

// --- Allocation ---------------------------------------------------------------------------------------------

Block* DeviceMemory::allocateSlow(size_t bytes, StreamHandle stream) {
  TORCH_CHECK_WITH(
      OutOfMemoryError, bytes < kOneExabyte, "simdev out of memory. Tried to allocate more than 1EB memory.");
  Request request;
  request.bytes = bytes;
  request.config = AllocatorConfig::read();
  request.size = request.config.roundSize(bytes);
  request.large = request.size > kSmallSize;
  request.stream = stream;
  request.context = gatherContext(HistorySettings::Context::State);
  request.pool = choosePool(stream);
  processPendingFrees();

  Block* block = nullptr;
  {
    std::lock_guard<SpinLock> guard(lock_);
    oversize_ = request.config.maxSplitSize;
    setSlow(kRounding, request.config.rounds);
    block = takeFree(request);
  }
  if (block == nullptr) {
    block = grow(request);
  }
  // What a capturing stream is told happens at every replay, when the block may be somebody else's.
  if (std::exchange(block->poisoned, false) && request.pool == kDefaultPool) {
    try {
      checkPoison(device_, block->pointer, block->size, stream);
    } catch (...) {
      free(block);
      throw;
    }
  }
  return block;
}

c10::MempoolId_t DeviceMemory::choosePool(StreamHandle stream) {
  std::shared_ptr<const std::vector<Capture>> captures;
  {
    std::lock_guard<SpinLock> guard(lock_);
    captures = captures_;
  }
  if (captures != nullptr) {
    for (const Capture& capture : *captures) {
      if (capture.filter(stream)) {
        return capture.pool;
      }
    }
  }
  return kDefaultPool;
}

MemoryPool& DeviceMemory::memoryPool(c10::MempoolId_t id) {
  const auto found = privatePools_.find(id);
  return found == privatePools_.end() ? defaultPool_ : *found->second;
}

BlockPool& DeviceMemory::blockPool(const Request& request) {
  MemoryPool& owner = memoryPool(request.pool);
  BlockPool& pool = owner.ofStream(request.stream);
  if (&owner == &defaultPool_) {
    poolCache_[poolCacheSlot(request.stream)] = {request.stream, &pool};
  }
  return pool;
}

Block* DeviceMemory::takeFree(Request& request) {
  BlockPool& pool = blockPool(request);
  Block* block = request.large ? nullptr : pool.popCached(request.size);
  if (block == nullptr) {
    block = index_.take(pool, request.large, request.size, request.config);
  }
  if (block == nullptr && !request.large) {
    index_.flush(pool);
    block = index_.take(pool, request.large, request.size, request.config);
  }
  if (block != nullptr) {
    finishAllocation(block, request);
  }
  return block;
}

void DeviceMemory::finishAllocation(Block* block, Request& request) {
  giveOut(block, request.bytes);
  if (block->size >= oversize_) {
    stats_.oversizeAllocations.increase(1);
  }
  if (history_.enabled) {
    traceBlock(TraceAction::Alloc, block, request.context);
    block->context = std::move(request.context);
  }
}

// --- Free -----------------------------------------------------------------------------------------------------

void DeviceMemory::freeSlow(Block* block) noexcept {
  std::shared_ptr<c10::GatheredContext> context = gatherContext(HistorySettings::Context::All);
  std::vector<StreamUse> uses;
  bool capturing = false;
  {
    std::lock_guard<SpinLock> guard(lock_);
    uses = std::exchange(block->uses, {});
    capturing = captures_ != nullptr;
  }
  if (uses.empty()) {
    const bool poisoned = sanitize_ && !capturing && poison(block->pointer, block->size, block->pool->stream);
    std::lock_guard<SpinLock> guard(lock_);
    block->poisoned = poisoned;
    traceBlock(TraceAction::FreeRequested, block, std::move(context));
    countFreed(block);
    completeFree(block);
    return;
  }
  {
    std::lock_guard<SpinLock> guard(lock_);
    traceBlock(TraceAction::FreeRequested, block, std::move(context));
    countFreed(block);
    block->state = BlockState::Pending;
    if (capturing) {
      block->uses = std::move(uses);
      deferredFrees_.push_back(block);
      return;
    }
  }
  recordUses(block, uses);
}

void DeviceMemory::completeFree(Block* block) {
  traceBlock(TraceAction::FreeCompleted, block, nullptr);
  block->context.reset();
  countInactive(block);
  putBack(block);
}

void DeviceMemory::recordStream(Block* block, StreamUse use) {
  std::lock_guard<SpinLock> guard(lock_);
  if (use.stream != block->pool->stream && std::ranges::find(block->uses, use) == block->uses.end()) {
    block->uses.push_back(use);
  }
}

bool DeviceMemory::isAllocated(const Block* block) {
  std::lock_guard<SpinLock> guard(lock_);
  return block->state == BlockState::Allocated;
}

void DeviceMemory::recordUses(Block* block, const std::vector<StreamUse>& uses) noexcept {
  std::vector<PendingFree> pending;
  for (const StreamUse& use : uses) {
    pending.push_back({use, recordEvent(use), block});
  }
  std::lock_guard<SpinLock> guard(lock_);
  block->pendingEvents = static_cast<int32_t>(pending.size());
  pendingFrees_ += pending.size();
  newPendingFrees_.insert(newPendingFrees_.end(), pending.begin(), pending.end());
  setSlow(kPendingFrees, true);
}

EventHandle DeviceMemory::recordEvent(const StreamUse& use) {
  EventHandle event = nullptr;
  {
    std::lock_guard<SpinLock> guard(lock_);
    const auto idle =
        std::ranges::find(idleEvents_, use.device, &std::pair<c10::DeviceIndex, EventHandle>::first);
    if (idle != idleEvents_.end()) {
      event = idle->second;
      *idle = idleEvents_.back();
      idleEvents_.pop_back();
    }
  }
  try {
    if (event == nullptr) {
      event = driver().createEvent(use.device, /*timing=*/false);
    }
    driver().recordEvent(event, use.stream);
    return event;
  } catch (...) {
    if (event != nullptr) {
      driver().destroyEvent(event);
    }
    return nullptr;
  }
}

void DeviceMemory::queueNewPendingFrees() {
  std::vector<PendingFree> recorded;
  {
    std::lock_guard<SpinLock> guard(lock_);
    recorded.swap(newPendingFrees_);
  }
  for (const PendingFree& pending : recorded) {
    pendingQueues_[pending.use.stream].push_back(pending);
  }
}

void DeviceMemory::processPendingFrees() noexcept {
  {
    std::lock_guard<SpinLock> guard(lock_);
    if (pendingFrees_ == 0) {
      return;
    }
  }
  std::unique_lock<std::mutex> events(eventMutex_, std::try_to_lock);
  if (!events.owns_lock()) {
    return; // another thread is at it
  }
  queueNewPendingFrees();
  for (auto queue = pendingQueues_.begin(); queue != pendingQueues_.end();) {
    std::deque<PendingFree>& waiting = queue->second;
    while (!waiting.empty() && isDone(waiting.front())) {
      finishPendingFree(waiting.front());
      waiting.pop_front();
    }
    queue = waiting.empty() ? pendingQueues_.erase(queue) : std::next(queue);
  }
}

bool DeviceMemory::isDone(const PendingFree& pending) noexcept {
  try {
    return pending.event != nullptr ? driver().queryEvent(pending.event)
                                    : driver().queryStream(pending.use.stream);
  } catch (...) {
    return false; // the stream reports its error to the next launch; the block waits for a synchronisation
  }
}

void DeviceMemory::finishPendingFree(const PendingFree& pending) noexcept {
  Block* block = pending.block;
  bool capturing = false;
  {
    std::lock_guard<SpinLock> guard(lock_);
    if (pending.event != nullptr) {
      idleEvents_.emplace_back(pending.use.device, pending.event);
    }
    if (--pendingFrees_ == 0) {
      setSlow(kPendingFrees, false);
    }
    if (--block->pendingEvents > 0) {
      return;
    }
    capturing = captures_ != nullptr;
  }
  const bool poisoned = sanitize_ && !capturing && poison(block->pointer, block->size, block->pool->stream);
  std::lock_guard<SpinLock> guard(lock_);
  block->poisoned = poisoned;
  completeFree(block);
}

// --- Private pools --------------------------------------------------------------------------------------------

void DeviceMemory::beginAllocateToPool(c10::MempoolId_t id, StreamFilter filter) {
  retainPool(id);
  std::lock_guard<SpinLock> guard(lock_);
  auto captures = captures_ != nullptr ? std::make_shared<std::vector<Capture>>(*captures_)
                                       : std::make_shared<std::vector<Capture>>();
  const bool begun =
      std::ranges::any_of(*captures, [&](const Capture& capture) { return capture.pool == id; });
  if (begun) {
    --memoryPool(id).useCount;
  }
  TORCH_CHECK(!begun, "beginAllocateToPool: already recording to mempool_id");
  captures->push_back({id, std::move(filter)});
  captures_ = std::move(captures);
  setSlow(kPrivatePools, true);
}

void DeviceMemory::endAllocateToPool(c10::MempoolId_t id) {
  std::vector<Block*> deferred;
  {
    std::lock_guard<SpinLock> guard(lock_);
    auto captures = captures_ != nullptr ? std::make_shared<std::vector<Capture>>(*captures_)
                                         : std::make_shared<std::vector<Capture>>();
    const auto ended = std::ranges::find(*captures, id, &Capture::pool);
    TORCH_CHECK(ended != captures->end(), "endAllocateToPool: not currently recording to mempool_id");
    captures->erase(ended);
    if (captures->empty()) {
      captures.reset();
      deferred.swap(deferredFrees_);
      setSlow(kPrivatePools, false);
    }
    captures_ = std::move(captures);
  }
  for (Block* block : deferred) {
    recordUses(block, std::exchange(block->uses, {}));
  }
}

void DeviceMemory::retainPool(c10::MempoolId_t id) {
  TORCH_CHECK(id != kDefaultPool, "{0, 0} is the default memory pool, which is always there");
  std::lock_guard<SpinLock> guard(lock_);
  std::unique_ptr<MemoryPool>& pool = privatePools_[id];
  if (pool == nullptr) {
    pool = std::make_unique<MemoryPool>(id);
  }
  ++pool->useCount;
}

void DeviceMemory::releasePool(c10::MempoolId_t id) {
  std::lock_guard<SpinLock> guard(lock_);
  const auto pool = privatePools_.find(id);
  TORCH_CHECK(
      pool != privatePools_.end() && pool->second->useCount > 0,
      "releasePool: nobody holds this memory pool");
  --pool->second->useCount;
}

int DeviceMemory::poolUseCount(c10::MempoolId_t id) {
  std::lock_guard<SpinLock> guard(lock_);
  const auto pool = privatePools_.find(id);
  return pool == privatePools_.end() ? 0 : pool->second->useCount;
}

// --- Statistics -----------------------------------------------------------------------------------------------

void DeviceMemory::setSlow(SlowReason reason, bool on) noexcept {
  constexpr uint32_t kForFree = kHistory | kSanitizer;
  slowAllocation_ = on ? slowAllocation_ | reason : slowAllocation_ & ~reason;
  slowFree_ = slowAllocation_ & kForFree;
}

void DeviceMemory::flushAll() {
  for (auto& [stream, pool] : defaultPool_.streams) {
    index_.flush(*pool);
  }
  for (auto& [id, owner] : privatePools_) {
    for (auto& [stream, pool] : owner->streams) {
      index_.flush(*pool);
    }
  }
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::stats() {
  const AllocatorConfig config = AllocatorConfig::read();
  c10::CachingDeviceAllocator::DeviceStats result;
  std::lock_guard<SpinLock> guard(lock_);
  flushAll();
  result.allocation = stats_.allocation.stats();
  result.segment = stats_.segment.stats();
  result.active = stats_.active.stats();
  result.inactive_split = stats_.inactiveSplit.stats();
  result.allocated_bytes = stats_.allocatedBytes.stats();
  result.reserved_bytes = stats_.reservedBytes.stats();
  result.active_bytes = stats_.activeBytes.stats();
  result.inactive_split_bytes = stats_.inactiveSplitBytes.stats();
  result.requested_bytes = stats_.requestedBytes.stats();
  result.num_alloc_retries = stats_.allocRetries;
  result.num_ooms = stats_.ooms;
  result.oversize_allocations = stats_.oversizeAllocations;
  result.oversize_segments = stats_.oversizeSegments;
  result.num_sync_all_streams = stats_.syncAllStreams;
  result.num_device_alloc = stats_.deviceAllocs;
  result.num_device_free = stats_.deviceFrees;
  result.max_split_size = static_cast<int64_t>(config.maxSplitSize);
  for (const auto& [id, reserved] : privateReserved_) {
    compat::setPrivatePoolReserved(result, id, reserved.stats());
  }
  return result;
}

void DeviceMemory::resetAccumulatedStats() {
  std::lock_guard<SpinLock> guard(lock_);
  flushAll();
  stats_.forEachMetric([](Metric& metric) { metric.resetAccumulated(); });
  stats_.oversizeAllocations.reset_accumulated();
  stats_.oversizeSegments.reset_accumulated();
  stats_.allocRetries = stats_.ooms = 0;
  for (auto& [id, reserved] : privateReserved_) {
    reserved.resetAccumulated();
  }
}

void DeviceMemory::resetPeakStats() {
  std::lock_guard<SpinLock> guard(lock_);
  flushAll();
  stats_.forEachMetric([](Metric& metric) { metric.resetPeak(); });
  stats_.oversizeAllocations.reset_peak();
  stats_.oversizeSegments.reset_peak();
  for (auto& [id, reserved] : privateReserved_) {
    reserved.resetPeak();
  }
}

std::pair<size_t, size_t> DeviceMemory::usage() {
  std::lock_guard<SpinLock> guard(lock_);
  return {
      static_cast<size_t>(stats_.allocatedBytes.current()),
      static_cast<size_t>(stats_.reservedBytes.current())};
}

// --- History --------------------------------------------------------------------------------------------------

std::shared_ptr<c10::GatheredContext> DeviceMemory::gatherContext(HistorySettings::Context when) {
  std::shared_ptr<c10::GatheredContext> (*gather)() = nullptr;
  {
    std::lock_guard<SpinLock> guard(lock_);
    if (history_.enabled && history_.contextWhen >= when) {
      gather = history_.gather;
    }
  }
  try {
    return gather != nullptr ? gather() : nullptr;
  } catch (...) {
    return nullptr; // a stack trace is not worth a failed allocation, still less a failed free
  }
}

void DeviceMemory::setHistory(const HistorySettings& settings, bool clear) {
  std::lock_guard<SpinLock> guard(lock_);
  history_ = settings;
  traceRing_.setCapacity(settings.enabled ? settings.maxEntries : 0);
  if (clear) {
    traceRing_.clear();
  }
  setSlow(kHistory, settings.enabled);
}

void DeviceMemory::trace(
    TraceAction action,
    uintptr_t address,
    size_t size,
    StreamHandle stream,
    c10::MempoolId_t pool,
    std::shared_ptr<c10::GatheredContext> context) {
  if (!history_.enabled || (history_.skippedActions >> static_cast<unsigned>(action) & 1) != 0) {
    return;
  }
  if (history_.contextWhen < HistorySettings::Context::Alloc) {
    context.reset();
  }
  traceRing_.push({action, address, size, stream, pool, microsecondsSinceEpoch(), std::move(context)});
}

void DeviceMemory::traceBlock(
    TraceAction action,
    const Block* block,
    std::shared_ptr<c10::GatheredContext> context) {
  if (history_.enabled) {
    trace(
        action,
        reinterpret_cast<uintptr_t>(block->pointer),
        block->requested,
        block->pool->stream,
        block->pool->owner->id,
        context != nullptr ? std::move(context) : block->context);
  }
}

void DeviceMemory::snapshot(
    MemorySnapshot& result,
    std::optional<c10::MempoolId_t> pool,
    bool includeTraces) {
  std::shared_ptr<c10::GatheredContext> context = gatherContext(HistorySettings::Context::All);
  std::lock_guard<SpinLock> guard(lock_);
  flushAll();
  trace(
      TraceAction::Snapshot,
      0,
      static_cast<size_t>(stats_.reservedBytes.current()),
      nullptr,
      kDefaultPool,
      context);
  for (const auto& [address, first] : index_.segments()) {
    if (pool.has_value() && first->pool->owner->id != *pool) {
      continue;
    }
    SnapshotSegment segment{
        .device = device_,
        .address = address,
        .stream = first->pool->stream,
        .large = first->large,
        .pool = first->pool->owner->id,
        .blocks = {}};
    for (const Block* block = first; block != nullptr; block = block->next) {
      const bool allocated = block->state == BlockState::Allocated;
      const bool active = allocated || block->state == BlockState::Pending;
      segment.size += block->size;
      segment.requested += active ? block->requested : 0;
      segment.allocated += allocated ? block->size : 0;
      segment.active += active ? block->size : 0;
      segment.blocks.push_back(
          {reinterpret_cast<uintptr_t>(block->pointer),
           block->size,
           active ? block->requested : 0,
           allocated,
           active,
           block->context});
    }
    result.segments.push_back(std::move(segment));
  }
  result.traces.push_back(includeTraces ? traceRing_.inOrder() : std::vector<TraceEntry>());
}

std::shared_ptr<c10::GatheredContext> DeviceMemory::contextOf(const Block* block) {
  std::lock_guard<SpinLock> guard(lock_);
  return block->state == BlockState::Allocated ? block->context : nullptr;
}

} // namespace simdev
