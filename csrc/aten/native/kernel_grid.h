// How the native kernels' work is shared out among blocks.  No PyTorch in here: the kernels include it.
#pragma once

#include "driver/driver.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace simdev::native {

// The elements, planes or channels [begin, end) that a block works on.
struct BlockRange {
  int64_t begin;
  int64_t end;
};

// For elements: blocks start at multiples of 16, so that they do not share cache lines.
inline BlockRange blockRange(const KernelContext& context, int64_t elements) {
  const int64_t share = (elements / context.grid + 16) & ~int64_t(15);
  const int64_t begin = std::min(elements, share * context.block);
  return {begin, std::min(elements, begin + share)};
}

// For parts that are long themselves, such as planes or channels.
inline BlockRange blockParts(const KernelContext& context, int64_t parts) {
  return {parts * context.block / context.grid, parts * (context.block + 1) / context.grid};
}

// One block for what fits in a core's cache: waking another thread costs more than it saves.
inline uint32_t gridFor(size_t bytes) {
  constexpr size_t kBytesPerBlock = 512 * 1024;
  constexpr size_t kMaxBlocks = 64;
  return static_cast<uint32_t>(std::clamp<size_t>(bytes / kBytesPerBlock, 1, kMaxBlocks));
}

// The same for kernels that take `parts` whole, and go over their memory more than once.
inline uint32_t gridForParts(int64_t parts, size_t bytes) {
  return static_cast<uint32_t>(std::min<int64_t>(gridFor(bytes / 2), parts));
}

// The same for kernels that draw numbers: making one takes as long as moving 16 bytes.
inline uint32_t gridForNumbers(int64_t count) {
  return gridFor(static_cast<size_t>(count) * 16);
}

} // namespace simdev::native
