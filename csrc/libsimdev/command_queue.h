// The bounded queue between the threads that use a stream and the stream's worker.
//
// A ring of cells of one cache line each; a command takes as many neighbouring cells as it needs.  Handing
// over a command writes its cells and then the first word of the first: the worker, which polls that word,
// gets the flag and the command in one cache miss.  Positions are counted in cells from the beginning of
// time, and are the tickets of the stream's timeline.  Producers exclude each other by a lock of their own
// (stream.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "command.h"
#include "timeline.h"

namespace sim {

class CommandQueue {
 public:
  static constexpr uint64_t kCells = 4096; // 256 KiB; 1,024 of the largest commands

  // --- Producers, one at a time ---

  bool allocated() const noexcept { return cells_ != nullptr; }
  void allocate() { cells_ = std::make_unique<Cell[]>(kCells); }

  // The position behind everything that has been committed.
  uint64_t tail() const noexcept { return tail_.load(std::memory_order_acquire); }

  // Room for a command, or null when that has to wait until the worker reaches roomAt(cells).  Looks at the
  // worker's progress only when the queue seems full, because each look takes a cache line from the worker.
  Command* reserve(uint16_t cells, const Timeline& progress) noexcept {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    const uint64_t pad = padBefore(tail, cells);
    if (tail + pad + cells - knownProgress_ > kCells) [[unlikely]] {
      knownProgress_ = progress.now();
      if (tail + pad + cells - knownProgress_ > kCells) {
        return nullptr;
      }
    }
    if (pad != 0) {
      Command* const filler = at(tail);
      filler->kind = CommandKind::Pad;
      publish(filler, static_cast<uint16_t>(pad));
    }
    return at(tail + pad);
  }
  uint64_t roomAt(uint16_t cells) const noexcept {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    return tail + padBefore(tail, cells) + cells - kCells;
  }

  // Makes the reserved command visible to the worker and returns its ticket.
  uint64_t publish(Command* command, uint16_t cells) noexcept {
    command->cells = cells;
    const uint64_t ticket = tail_.load(std::memory_order_relaxed) + cells;
    tail_.store(ticket, std::memory_order_release);
    std::atomic_ref(command->ready).store(1, std::memory_order_release);
    return ticket;
  }

  // --- The worker ---

  // The oldest command, or null while the queue is empty.
  Command* front(std::memory_order order = std::memory_order_acquire) noexcept {
    Command* const command = at(head_);
    return std::atomic_ref(command->ready).load(order) != 0 ? command : nullptr;
  }

  // Removes the front and returns the worker's new position.  The cells can be reused when the timeline says
  // so.
  uint64_t pop() noexcept {
    Command* const command = at(head_);
    const uint16_t cells = command->cells;
    for (uint16_t i = 0; i < cells; ++i) {
      // Any cell can be the first of a later command, so none may look ready.
      std::atomic_ref(at(head_ + i)->ready).store(0, std::memory_order_relaxed);
    }
    return head_ += cells;
  }

 private:
  struct alignas(kCacheLine) Cell {
    unsigned char bytes[kCacheLine] = {};
  };

  Command* at(uint64_t position) noexcept { return reinterpret_cast<Command*>(&cells_[position % kCells]); }
  static uint64_t padBefore(uint64_t tail, uint16_t cells) noexcept {
    const uint64_t untilEnd = kCells - tail % kCells;
    return cells <= untilEnd ? 0 : untilEnd;
  }

  std::unique_ptr<Cell[]> cells_;
  alignas(kCacheLine) std::atomic<uint64_t> tail_{0}; // the producers' line
  uint64_t knownProgress_ = 0;
  alignas(kCacheLine) uint64_t head_ = 0; // the worker's line
};

} // namespace sim
