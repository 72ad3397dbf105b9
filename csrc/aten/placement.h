// Letting ATen's functional kernels write straight into memory that was allocated before they ran.
//
// The host allocates an operator's outputs when it launches it, because the caller needs them at once; the kernel that
// runs later, `at::native_layer_norm` say, insists on allocating its results itself.  An OutputPlacement makes
// the two meet: while it lives, the first allocation of an output's exact size in this thread is given that output's
// memory.  What did not land in its place (another layout, a result that is a view) is copied there by finish().
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace simdev {

// Lives on the stack of the code that runs a kernel on the device.
class OutputPlacement {
 public:
  // `outputs`: backing tensors; undefined ones stand for results that the kernel will leave undefined.
  explicit OutputPlacement(at::TensorList outputs);
  ~OutputPlacement();
  OutputPlacement(const OutputPlacement&) = delete;
  OutputPlacement& operator=(const OutputPlacement&) = delete;

  // Makes every output hold the value of the result at its index.  Throws when sizes or dtypes differ from what was
  // inferred: that is a fault of the operator's shape function and must not pass as a wrong value.
  void finish(at::TensorList results);

  // The memory of a not yet taken output of exactly this size, or nullptr.
  void* take(size_t bytes) noexcept;

 private:
  struct Slot {
    void* pointer;
    size_t bytes;
    bool taken;
  };
  at::TensorList outputs_;
  std::vector<Slot> slots_;
  OutputPlacement* previous_;
};

// Copies within the device, for code that runs there.  ATen would take a column for a matrix to transpose, which is slow.
void copyElements(const at::Tensor& dst, const at::Tensor& src);

// Puts the placing allocator in front of the host's default one.  While a kernel runs on the device it also serves the
// kernel's temporaries, from the workspace; otherwise it only forwards.
void installPlacementAllocator();

} // namespace simdev
