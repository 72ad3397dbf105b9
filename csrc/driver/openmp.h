// The OpenMP runtime in the process.  It is PyTorch's, which is found by name rather than linked, since a second copy
// would be another runtime.
#pragma once

namespace simdev {

struct OpenMP {
  void (*setNumThreads)(int threads) = nullptr;
  // The next two are null where it is not GCC's: LLVM's and Intel's stop the teams of all threads at a pause.
  int (*pauseResourceAll)(int kind) = nullptr; // ends the calling thread's team
  void (*parallel)(void (*body)(void* data), void* data, unsigned threads, unsigned flags) = nullptr;

  static const OpenMP& get();
  bool isGcc() const noexcept { return parallel != nullptr; }

 private:
  OpenMP();
};

// omp_pause_soft: what is set for the thread stays.
inline constexpr int kOpenMPPauseSoft = 1;

} // namespace simdev
