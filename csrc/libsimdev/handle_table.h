// The handles of streams and events.
//
// A handle is not an address but (kind, life, slot) in the bits of a pointer.  Objects are never freed but
// used again; each has its slot for ever, and a new number for each of its lives.  So a handle that was
// destroyed, is of another kind, or is no handle at all, is recognised without touching memory that might not
// be there.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "error.h"

namespace sim {

enum class HandleKind : uintptr_t { Stream = 0x51, Event = 0x52 };

template <class T, HandleKind kKind>
class HandleTable {
 public:
  // Gives the object its slot, once.
  static uint32_t add(T* object) {
    std::lock_guard lock(mutex_);
    if (count_ == kChunks * kChunkSize) {
      fail(simErrorMemoryAllocation, "no more than %u handles of a kind", kChunks * kChunkSize);
    }
    std::atomic<Chunk*>& chunk = chunks_[count_ / kChunkSize];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      chunk.store(new Chunk{}, std::memory_order_release);
    }
    (*chunk.load(std::memory_order_relaxed))[count_ % kChunkSize].store(object, std::memory_order_release);
    return count_++;
  }

  static uintptr_t handle(uint32_t slot, uint64_t life) noexcept {
    return static_cast<uintptr_t>(kKind) << 56 | (life & kLifeMask) << 28 | static_cast<uintptr_t>(slot) << 4;
  }

  // The object in the handle's slot, or null if the handle cannot be of this kind.  Whether it is of the
  // object's present life is for the caller to compare.
  static T* find(const void* handle) noexcept {
    const auto bits = reinterpret_cast<uintptr_t>(handle);
    const uintptr_t slot = bits >> 4 & (kChunks * kChunkSize - 1);
    if (bits >> 56 != static_cast<uintptr_t>(kKind)) {
      return nullptr;
    }
    const Chunk* const chunk = chunks_[slot / kChunkSize].load(std::memory_order_acquire);
    return chunk != nullptr ? (*chunk)[slot % kChunkSize].load(std::memory_order_acquire) : nullptr;
  }

 private:
  static constexpr uint32_t kChunks = 4096, kChunkSize = 4096; // 24 bits
  static constexpr uint64_t kLifeMask = (uint64_t{1} << 28) - 1;
  using Chunk = std::array<std::atomic<T*>, kChunkSize>;

  static inline std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  static inline std::mutex mutex_;
  static inline uint32_t count_ = 0;
};

} // namespace sim
