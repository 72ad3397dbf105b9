// What the memory viewer is fed with: the history of allocator events, and the picture of all segments and blocks.
//
// Lives here: plain records and the ring that keeps the last of them.  Does not live here: when something is recorded
// (device_memory.cpp) and the snapshot's pickle format (csrc/bindings/memory.cpp).
#pragma once

#include "driver/driver.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace simdev {

enum class TraceAction : uint8_t {
  Alloc,
  FreeRequested,
  FreeCompleted, // later than FreeRequested if another stream still used the block
  SegmentAlloc,
  SegmentFree,
  Snapshot,
  Oom,
};
// The names in the snapshot, in the order of the enumeration.
inline constexpr const char* kTraceActionNames[] =
    {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "snapshot", "oom"};

struct TraceEntry {
  TraceAction action;
  uintptr_t address; // Oom: the bytes that the device still had free
  size_t size;
  StreamHandle stream;
  c10::MempoolId_t pool;
  int64_t timeUs; // since the epoch
  std::shared_ptr<c10::GatheredContext> context;
};

// How much is recorded.  Contexts (stack traces) are gathered outside of all locks of the allocator.
struct HistorySettings {
  enum class Context : uint8_t { Never, State, Alloc, All }; // as in torch.cuda.memory._record_memory_history

  bool enabled = false;
  Context contextWhen = Context::Never;
  std::shared_ptr<c10::GatheredContext> (*gather)() = nullptr;
  size_t maxEntries = 0;
  uint32_t skippedActions = 0; // a bit per TraceAction
};

// The last maxEntries events of a device.
class TraceRing {
 public:
  void clear() {
    entries_.clear();
    next_ = 0;
  }
  void setCapacity(size_t capacity) {
    std::vector<TraceEntry> kept = inOrder();
    if (kept.size() > capacity) {
      kept.erase(kept.begin(), kept.end() - static_cast<ptrdiff_t>(capacity));
    }
    entries_ = std::move(kept);
    next_ = 0;
    capacity_ = capacity;
  }
  void push(TraceEntry entry) {
    if (entries_.size() < capacity_) {
      entries_.push_back(std::move(entry));
    } else if (capacity_ > 0) {
      entries_[next_] = std::move(entry);
      next_ = (next_ + 1) % capacity_;
    }
  }
  std::vector<TraceEntry> inOrder() const {
    std::vector<TraceEntry> result(entries_.begin() + static_cast<ptrdiff_t>(next_), entries_.end());
    result.insert(result.end(), entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(next_));
    return result;
  }

 private:
  size_t capacity_ = 0;
  size_t next_ = 0; // the oldest entry, once the ring is full
  std::vector<TraceEntry> entries_;
};

struct SnapshotBlock {
  uintptr_t address;
  size_t size;
  size_t requested;
  bool allocated;
  bool active; // allocated, or waiting for another stream
  std::shared_ptr<c10::GatheredContext> context;
};

struct SnapshotSegment {
  c10::DeviceIndex device;
  uintptr_t address;
  size_t size = 0;
  size_t requested = 0;
  size_t allocated = 0;
  size_t active = 0;
  StreamHandle stream;
  bool large;
  c10::MempoolId_t pool;
  std::vector<SnapshotBlock> blocks;
};

struct MemorySnapshot {
  std::vector<SnapshotSegment> segments; // of all devices, by address within a device
  std::vector<std::vector<TraceEntry>> traces; // one per device
};

} // namespace simdev
