// Pointwise kernels over dense memory, written against the chip's launch call.  No PyTorch in here or in the .cpp.
#pragma once

#include "driver/driver.h"

#include <cstdint>

namespace simdev::native {

enum class ElementType : uint8_t { Float, Double };

// out[i] = a[i] op (b != nullptr ? b[i] : scalar); `alpha` scales b in Add.
struct BinaryArguments {
  const void* a;
  const void* b;
  void* out;
  int64_t count;
  double scalar;
  double alpha;
};
enum class BinaryOp : uint8_t { Add, AddScaled, Sub, Mul, Div };

struct UnaryArguments {
  const void* in;
  void* out;
  int64_t count;
};

struct FillArguments {
  void* out;
  int64_t count; // elements
  uint32_t elementSize; // 1, 2, 4, 8 or 16 bytes
  alignas(16) unsigned char element[16];
};

// out[i] = in[i] > 0 ? grad[i] : 0
struct ReluBackwardArguments {
  const void* grad;
  const void* in;
  void* out;
  int64_t count;
};

KernelFunction binaryKernel(BinaryOp op, ElementType type, bool scalar);
KernelFunction reluKernel(ElementType type);
KernelFunction reluBackwardKernel(ElementType type);
void fillKernel(const KernelContext& context, const void* arguments);

} // namespace simdev::native
