// A device: its memory, its compute threads, its streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "arena.h"
#include "compute_pool.h"
#include "config.h"
#include "execution.h"

namespace sim {

class AddressSpace;
class Stream;

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -3;

class Device {
 public:
  Device(int index, const Config& config, const AddressSpace& space);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int index() const noexcept { return index_; }
  uint64_t mask() const noexcept { return uint64_t{1} << index_; }
  ptrdiff_t memoryOffset() const noexcept { return memoryOffset_; }
  Arena& memory() noexcept { return memory_; }
  ComputePool& pool() noexcept { return pool_; }
  bool stickyErrors() const noexcept { return stickyErrors_; }

  // The devices whose memory this device's kernels can use, itself included, as a bit mask.
  uint64_t reachable() const noexcept { return reachable_.load(std::memory_order_acquire); }
  // False when it was so already.
  bool setPeerAccess(int peer, bool enabled) noexcept;

  Stream& defaultStream() noexcept { return *defaultStream_; }
  Stream& createStream(unsigned flags, int priority);
  // By a closed stream's worker, when it has finished.
  void takeBack(Stream& stream) noexcept;

  // All streams that are open or still have work.
  std::vector<Stream*> streams();
  // Waits for everything queued on any stream, then throws the first error.
  void synchronize();

  // An error of a stream that nobody can ask any more, for synchronize() to report.
  void keepOrphanedError(const AsyncError& error) noexcept;
  // With sticky errors: fails every stream there is and will be.
  void failAllStreams(const AsyncError& error) noexcept;

  std::mutex& mutex() noexcept { return mutex_; }

 private:
  const int index_;
  const ptrdiff_t memoryOffset_;
  const bool stickyErrors_;
  std::atomic<uint64_t> reachable_;
  Arena memory_;
  ComputePool pool_;
  std::mutex mutex_; // of what follows
  std::vector<Stream*> streams_;
  std::vector<Stream*> closedStreams_; // for reuse
  Stream* defaultStream_ = nullptr;
  std::optional<AsyncError> deviceError_; // orphaned or, with sticky errors, that of all streams
};

} // namespace sim
