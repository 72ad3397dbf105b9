// How many threads ATen's kernels use on a stream's worker.
//
// ATen parallelises with OpenMP from 32,768 elements on, and each worker is the master of a team of its own.  With
// more threads than processors libgomp puts idle team members to sleep, and waking them costs 15 to 60 us: as long as adding
// a few hundred thousand elements.  So a task that moves little memory and does little arithmetic runs on the worker alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simdev {

// Sets the calling worker's team size for the task that it is about to run.
void setKernelParallelism(bool parallel);

// An operator whose largest argument or result has fewer bytes runs on the worker alone.
inline constexpr size_t kParallelBytes = size_t(512) << 10;
inline constexpr size_t kParallelBytesOfComputeBound = size_t(64) << 10;
// The same for those whose multiplications are easily counted: products of matrices, convolutions, attention.
inline constexpr int64_t kParallelMultiplications = int64_t{4} << 20;

} // namespace simdev
