// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random bits as a function of
// a counter, so that any part of a sequence can be computed alone, by any thread, in any order.
#pragma once

#include "csrc/runtime/philox_state.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace simdev::native {
// Compiled for several instruction sets, and so different in each file that includes it: hence no external linkage.
namespace {

// The vectors of the instruction set that this file is compiled for.  One block takes one 64-bit element, of which only
// the lower half counts: a 32 x 32 bit product then needs no shuffling, and what is above is never looked at.
#if defined(__AVX512F__)
inline constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr size_t kVectorBytes = 32;
#else
inline constexpr size_t kVectorBytes = 16;
#endif
using Vector = uint64_t __attribute__((vector_size(kVectorBytes)));
inline constexpr size_t kBlocksPerVector = kVectorBytes / sizeof(uint64_t);

inline Vector multiplyLowerHalves(Vector a, Vector b) {
#if defined(__AVX512F__)
  return (Vector)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Vector)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Vector)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
#endif
}

// Where the numbers of a call start.  For code on the device, whose memory holds it when a graph is replayed.
inline PhiloxPosition positionOf(const PhiloxState& state) {
  if (state.replay == nullptr) {
    return state.start;
  }
  return {state.replay->seed, state.replay->offset + state.start.offset};
}

// Fills `words` with the blocks of four 32-bit numbers number `counter`, `counter` + 1, ... of the sequence that (seed,
// subsequence) selects.
template <size_t kWords>
inline void philox(uint64_t seed, uint64_t counter, uint32_t subsequence, uint32_t (&words)[kWords]) {
  // Vectors in flight at once, to hide the latency of the multiplication.
  constexpr size_t kInFlight = kVectorBytes == 64 ? 4 : 2;
  constexpr size_t kBlocks = kWords / 4;
  static_assert(kWords % 4 == 0 && kBlocks % (kInFlight * kBlocksPerVector) == 0);
  const Vector zero{};
  const Vector multiplier0 = zero + 0xD2511F53;
  const Vector multiplier1 = zero + 0xCD9E8D57;
  Vector block = zero + counter;
  for (size_t i = 0; i < kBlocksPerVector; ++i) {
    block[i] += i;
  }
  for (size_t first = 0; first < kBlocks; first += kInFlight * kBlocksPerVector) {
    Vector c[kInFlight][4];
    for (size_t i = 0; i < kInFlight; ++i) {
      c[i][0] = block;
      c[i][1] = block >> 32;
      c[i][2] = zero + subsequence;
      c[i][3] = zero;
      block += kBlocksPerVector;
    }
    uint32_t k0 = static_cast<uint32_t>(seed);
    uint32_t k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kInFlight; ++i) {
        const Vector product0 = multiplyLowerHalves(c[i][0], multiplier0);
        const Vector product1 = multiplyLowerHalves(c[i][2], multiplier1);
        c[i][0] = (product1 >> 32) ^ c[i][1] ^ k0;
        c[i][1] = product1;
        c[i][2] = (product0 >> 32) ^ c[i][3] ^ k1;
        c[i][3] = product0;
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    for (size_t i = 0; i < kInFlight; ++i) {
      // Four words of a block side by side, in memory order.
      const Vector halves[2] = {
          (c[i][0] & 0xFFFFFFFF) | (c[i][1] << 32), (c[i][2] & 0xFFFFFFFF) | (c[i][3] << 32)};
      uint64_t pairs[2 * kBlocksPerVector];
      for (size_t j = 0; j < kBlocksPerVector; ++j) {
        pairs[2 * j] = halves[0][j];
        pairs[2 * j + 1] = halves[1][j];
      }
      std::memcpy(words + 4 * (first + i * kBlocksPerVector), pairs, sizeof(pairs));
    }
  }
}

} // namespace
} // namespace simdev::native
