// Copying much memory.
//
// memcpy first reads the cache lines it is about to overwrite, and throws everything else out of the cache.
// Past the size of the caches, stores that bypass them move a third less data.  (glibc does the same, but
// from a threshold that it derives from the shared cache, which virtual machines report many times too
// large.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sim {

// Copies of this size in all should bypass the caches: nothing of them would be left there for the next
// reader.
constexpr size_t kStreamingBytes = size_t{16} << 20;

inline void copyStreaming(char* destination, const char* source, size_t bytes) noexcept {
#if defined(__SSE2__)
  constexpr size_t kLine = 64;
  const size_t head = -reinterpret_cast<uintptr_t>(destination) % kLine;
  if (bytes >= head + kLine) {
    memcpy(destination, source, head);
    destination += head;
    source += head;
    bytes -= head;
    for (; bytes >= kLine; bytes -= kLine, destination += kLine, source += kLine) {
      const auto* const from = reinterpret_cast<const __m128i*>(source);
      auto* const to = reinterpret_cast<__m128i*>(destination);
      const __m128i first = _mm_loadu_si128(from), second = _mm_loadu_si128(from + 1);
      const __m128i third = _mm_loadu_si128(from + 2), fourth = _mm_loadu_si128(from + 3);
      _mm_stream_si128(to, first);
      _mm_stream_si128(to + 1, second);
      _mm_stream_si128(to + 2, third);
      _mm_stream_si128(to + 3, fourth);
    }
    _mm_sfence(); // such stores are not ordered by what announces them to others
  }
#endif
  memcpy(destination, source, bytes);
}

} // namespace sim
