// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random bits as a function of
// a counter, so that any part of a sequence can be computed alone, by any thread, in any order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simdev::native {

// Fills `words` with the blocks of four 32-bit numbers number `counter`, `counter` + 1, ... of the sequence that (seed,
// subsequence) selects.  `kWords` is a multiple of 4.
template <size_t kWords>
inline void philox(uint64_t seed, uint64_t counter, uint32_t subsequence, uint32_t (&words)[kWords]) {
  constexpr size_t kBlocks = kWords / 4;
  // One array per lane keeps the rounds free of shuffles; interleaving at the end is cheap beside them.
  uint32_t lane[4][kBlocks];
  for (size_t i = 0; i < kBlocks; ++i) {
    const uint64_t block = counter + i;
    uint32_t c0 = static_cast<uint32_t>(block);
    uint32_t c1 = static_cast<uint32_t>(block >> 32);
    uint32_t c2 = subsequence;
    uint32_t c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed);
    uint32_t k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = uint64_t{0xD2511F53} * c0;
      const uint64_t product1 = uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(product1);
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(product0);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    lane[0][i] = c0;
    lane[1][i] = c1;
    lane[2][i] = c2;
    lane[3][i] = c3;
  }
  for (size_t i = 0; i < kBlocks; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      words[4 * i + j] = lane[j][i];
    }
  }
}

} // namespace simdev::native
