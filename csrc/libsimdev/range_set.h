// A set of free ranges of some address space: best fit, lowest address among equals, neighbours coalesce.
//
// Plain bookkeeping on offsets; what the space is and whether memory is behind it is the arena's business
// (arena.h).
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace sim {

class RangeSet {
 public:
  // Ranges are not joined across multiples of `boundary` (0: they always are).
  explicit RangeSet(size_t boundary = 0) : boundary_(boundary) {}

  void insert(size_t offset, size_t size) {
    auto next = byOffset_.lower_bound(offset);
    if (next != byOffset_.end() && offset + size == next->first && mayJoin(next->first)) {
      size += next->second;
      next = erase(next);
    }
    if (next != byOffset_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == offset && mayJoin(offset)) {
        offset = previous->first;
        size += previous->second;
        erase(previous);
      }
    }
    add(offset, size);
  }

  // Takes `size` bytes from the smallest range that has them.
  std::optional<size_t> take(size_t size) {
    const auto best = bySize_.lower_bound({size, 0});
    if (best == bySize_.end()) {
      return std::nullopt;
    }
    const auto [available, offset] = *best;
    erase(byOffset_.find(offset));
    if (available > size) {
      add(offset + size, available - size);
    }
    return offset;
  }

  // Takes the range that starts at `offset` if it has exactly this size.
  bool takeExactly(size_t offset, size_t size) {
    const auto range = byOffset_.find(offset);
    if (range == byOffset_.end() || range->second != size) {
      return false;
    }
    erase(range);
    return true;
  }

 private:
  using ByOffset = std::map<size_t, size_t>;

  bool mayJoin(size_t at) const { return boundary_ == 0 || at % boundary_ != 0; }
  void add(size_t offset, size_t size) {
    byOffset_.emplace(offset, size);
    bySize_.emplace(size, offset);
  }
  ByOffset::iterator erase(ByOffset::iterator range) {
    bySize_.erase({range->second, range->first});
    return byOffset_.erase(range);
  }

  const size_t boundary_;
  ByOffset byOffset_;
  std::set<std::pair<size_t, size_t>> bySize_;
};

} // namespace sim
