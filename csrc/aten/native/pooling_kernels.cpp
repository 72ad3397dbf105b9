// The loops of max pooling.  See pooling_kernels.h.
#include "aten/native/pooling_kernels.h"

#include "aten/native/kernel_clones.h"
#include "aten/native/kernel_grid.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace simdev::native {

namespace {

// A NaN wins over everything before it, and the last of several wins, as in ATen.  Selects by masks: which of a window's
// elements is the largest cannot be predicted, and a mispredicted branch costs more than the whole window.
template <typename T>
inline void consider(T value, int64_t index, T& best, int64_t& bestIndex) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const int wins = static_cast<int>(value > best) | static_cast<int>(value != value);
  const Bits mask = Bits(0) - static_cast<Bits>(wins);
  best = std::bit_cast<T>((std::bit_cast<Bits>(value) & mask) | (std::bit_cast<Bits>(best) & ~mask));
  const int64_t indexMask = -static_cast<int64_t>(wins);
  bestIndex = (index & indexMask) | (bestIndex & ~indexMask);
}

// The same for planes of floats that the windows tile exactly: first the larger of each pair of neighbours, in one loop
// over the whole plane that vectorises whatever its width, then the larger of the pairs above each other.
constexpr int64_t kMaxPairs = 4096;

SIMDEV_CLONES void poolTiledPlane(
    const float* input,
    float* output,
    int64_t* indices,
    int64_t outputHeight,
    int64_t outputWidth) {
  float largest[kMaxPairs];
  int32_t which[kMaxPairs];
  const int64_t pairs = 2 * outputHeight * outputWidth;
  for (int64_t j = 0; j < pairs; ++j) {
    const float left = input[2 * j];
    const float right = input[2 * j + 1];
    const bool wins = (right > left) | (right != right);
    largest[j] = wins ? right : left;
    which[j] = static_cast<int32_t>(2 * j) + (wins ? 1 : 0);
  }
  for (int64_t oh = 0; oh < outputHeight; ++oh) {
    const int64_t top = 2 * oh * outputWidth;
    for (int64_t ow = 0; ow < outputWidth; ++ow) {
      const float above = largest[top + ow];
      const float below = largest[top + outputWidth + ow];
      const bool wins = (below > above) | (below != below);
      output[oh * outputWidth + ow] = wins ? below : above;
      indices[oh * outputWidth + ow] = wins ? which[top + outputWidth + ow] : which[top + ow];
    }
  }
}

// The 2x2 window with stride 2 that nearly every network uses: no bounds to check.
template <typename T>
void poolPlaneBy2(const MaxPool2dArguments& args, const T* input, T* output, int64_t* indices) {
  for (int64_t oh = 0; oh < args.outputHeight; ++oh) {
    const int64_t top = 2 * oh * args.inputWidth;
    const int64_t bottom = top + args.inputWidth;
    for (int64_t ow = 0; ow < args.outputWidth; ++ow) {
      const int64_t left = top + 2 * ow;
      T best = -std::numeric_limits<T>::infinity();
      int64_t bestIndex = left;
      consider(input[left], left, best, bestIndex);
      consider(input[left + 1], left + 1, best, bestIndex);
      consider(input[bottom + 2 * ow], bottom + 2 * ow, best, bestIndex);
      consider(input[bottom + 2 * ow + 1], bottom + 2 * ow + 1, best, bestIndex);
      output[oh * args.outputWidth + ow] = best;
      indices[oh * args.outputWidth + ow] = bestIndex;
    }
  }
}

// The first tap of a window that starts at `start` (negative in the padding) which lies inside.
int64_t firstInside(int64_t start, int64_t dilation) {
  return start < 0 ? start + (-start + dilation - 1) / dilation * dilation : start;
}

template <typename T>
void poolPlane(const MaxPool2dArguments& args, const T* input, T* output, int64_t* indices) {
  for (int64_t oh = 0; oh < args.outputHeight; ++oh) {
    const int64_t rowStart = oh * args.strideHeight - args.paddingHeight;
    const int64_t rowEnd =
        std::min(rowStart + (args.kernelHeight - 1) * args.dilationHeight + 1, args.inputHeight);
    const int64_t firstRow = firstInside(rowStart, args.dilationHeight);
    for (int64_t ow = 0; ow < args.outputWidth; ++ow) {
      const int64_t columnStart = ow * args.strideWidth - args.paddingWidth;
      const int64_t columnEnd =
          std::min(columnStart + (args.kernelWidth - 1) * args.dilationWidth + 1, args.inputWidth);
      const int64_t firstColumn = firstInside(columnStart, args.dilationWidth);
      T best = -std::numeric_limits<T>::infinity();
      int64_t bestIndex = firstRow * args.inputWidth + firstColumn;
      for (int64_t row = firstRow; row < rowEnd; row += args.dilationHeight) {
        for (int64_t column = firstColumn; column < columnEnd; column += args.dilationWidth) {
          const int64_t index = row * args.inputWidth + column;
          consider(input[index], index, best, bestIndex);
        }
      }
      output[oh * args.outputWidth + ow] = best;
      indices[oh * args.outputWidth + ow] = bestIndex;
    }
  }
}

template <typename T>
void maxPool2d(const KernelContext& context, const void* arguments) {
  const auto& args = *static_cast<const MaxPool2dArguments*>(arguments);
  const bool by2 = args.kernelHeight == 2 && args.kernelWidth == 2 && args.strideHeight == 2 &&
                   args.strideWidth == 2 && args.paddingHeight == 0 && args.paddingWidth == 0 &&
                   args.dilationHeight == 1 && args.dilationWidth == 1 &&
                   2 * args.outputHeight <= args.inputHeight && 2 * args.outputWidth <= args.inputWidth;
  const bool tiled = by2 && 2 * args.outputHeight == args.inputHeight &&
                     2 * args.outputWidth == args.inputWidth &&
                     2 * args.outputHeight * args.outputWidth <= kMaxPairs;
  const int64_t inputSize = args.inputHeight * args.inputWidth;
  const int64_t outputSize = args.outputHeight * args.outputWidth;
  const auto [begin, end] = blockParts(context, args.planes);
  for (int64_t plane = begin; plane < end; ++plane) {
    const T* input = static_cast<const T*>(args.input) + plane * inputSize;
    T* output = static_cast<T*>(args.output) + plane * outputSize;
    int64_t* indices = args.indices + plane * outputSize;
    if constexpr (std::is_same_v<T, float>) {
      if (tiled) {
        poolTiledPlane(input, output, indices, args.outputHeight, args.outputWidth);
        continue;
      }
    }
    by2 ? poolPlaneBy2(args, input, output, indices) : poolPlane(args, input, output, indices);
  }
}

template <typename T>
void maxPool2dBackward(const KernelContext& context, const void* arguments) {
  const auto& args = *static_cast<const MaxPool2dBackwardArguments*>(arguments);
  const auto [begin, end] = blockParts(context, args.planes);
  for (int64_t plane = begin; plane < end; ++plane) {
    const T* gradOutput = static_cast<const T*>(args.gradOutput) + plane * args.outputSize;
    const int64_t* indices = args.indices + plane * args.outputSize;
    T* gradInput = static_cast<T*>(args.gradInput) + plane * args.inputSize;
    std::fill_n(gradInput, args.inputSize, T(0));
    for (int64_t i = 0; i < args.outputSize; ++i) {
      const int64_t index = indices[i];
      if (static_cast<uint64_t>(index) < static_cast<uint64_t>(args.inputSize)) {
        gradInput[index] += gradOutput[i];
      } else if (index != -1) { // which stands for none
        throw std::out_of_range(
            "index " + std::to_string(index) + " is out of bounds for size " +
            std::to_string(args.inputSize));
      }
    }
  }
}

} // namespace

KernelFunction maxPool2dKernel(bool isDouble) {
  return isDouble ? maxPool2d<double> : maxPool2d<float>;
}

KernelFunction maxPool2dBackwardKernel(bool isDouble) {
  return isDouble ? maxPool2dBackward<double> : maxPool2dBackward<float>;
}

} // namespace simdev::native
