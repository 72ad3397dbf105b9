// The loops of batch normalisation.  See batch_norm_kernels.h.
#include "aten/native/batch_norm_kernels.h"

#include "aten/native/kernel_clones.h"
#include "aten/native/kernel_grid.h"

#include <cmath>

namespace simdev::native {

namespace {

constexpr int kLanes = 16; // independent sums: they vectorise, and round less than one long sum

struct Moments {
  double mean;
  double variance; // biased
};

// The sum of term(i) over a plane's elements.
template <typename Term>
[[gnu::always_inline]] inline double sumOver(int64_t count, Term term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += term(i + lane);
    }
  }
  for (; i < count; ++i) {
    lanes[0] += term(i);
  }
  double sum = 0;
  for (float lane : lanes) {
    sum += lane;
  }
  return sum;
}

// Two passes: the mean first, so that the variance does not cancel.  Planes are summed in float, planes' sums in double.
SIMDEV_CLONES Moments momentsOf(const BatchNormArguments& args, int64_t channel) {
  const double count = static_cast<double>(args.batch * args.spatial);
  const int64_t stride = args.channels * args.spatial;
  const float* first = args.input + channel * args.spatial;
  double sum = 0;
  for (int64_t n = 0; n < args.batch; ++n) {
    const float* plane = first + n * stride;
    sum += sumOver(args.spatial, [plane](int64_t i) { return plane[i]; });
  }
  const double mean = sum / count;
  const auto center = static_cast<float>(mean);
  double squares = 0;
  for (int64_t n = 0; n < args.batch; ++n) {
    const float* plane = first + n * stride;
    squares += sumOver(args.spatial, [plane, center](int64_t i) {
      const float difference = plane[i] - center;
      return difference * difference;
    });
  }
  return {mean, squares / count};
}

SIMDEV_CLONES void scaleChannel(const BatchNormArguments& args, int64_t channel, float scale, float shift) {
  const int64_t stride = args.channels * args.spatial;
  for (int64_t n = 0; n < args.batch; ++n) {
    const int64_t offset = channel * args.spatial + n * stride;
    const float* in = args.input + offset;
    float* out = args.output + offset;
    for (int64_t i = 0; i < args.spatial; ++i) {
      out[i] = in[i] * scale + shift;
    }
  }
}

float blend(float running, double fresh, double momentum) {
  return static_cast<float>(momentum * fresh + (1 - momentum) * running);
}

// Of the gradient with respect to the output, over all of a channel.
struct GradientSums {
  double gradient;
  double product; // with (input - mean)
};

SIMDEV_CLONES GradientSums gradientSums(const BatchNormBackwardArguments& args, int64_t channel) {
  const float mean = args.saveMean[channel];
  GradientSums sums{};
  for (int64_t n = 0; n < args.batch; ++n) {
    const int64_t offset = (n * args.channels + channel) * args.spatial;
    const float* gradient = args.gradOutput + offset;
    const float* in = args.input + offset;
    sums.gradient += sumOver(args.spatial, [gradient](int64_t i) { return gradient[i]; });
    sums.product +=
        sumOver(args.spatial, [gradient, in, mean](int64_t i) { return gradient[i] * (in[i] - mean); });
  }
  return sums;
}

// gradInput = scale * (gradOutput - gradientMean - (input - mean) * slope)
SIMDEV_CLONES void inputGradient(
    const BatchNormBackwardArguments& args,
    int64_t channel,
    float scale,
    float gradientMean,
    float slope) {
  const float mean = args.saveMean[channel];
  for (int64_t n = 0; n < args.batch; ++n) {
    const int64_t offset = (n * args.channels + channel) * args.spatial;
    const float* gradient = args.gradOutput + offset;
    const float* in = args.input + offset;
    float* out = args.gradInput + offset;
    for (int64_t i = 0; i < args.spatial; ++i) {
      out[i] = scale * (gradient[i] - gradientMean - (in[i] - mean) * slope);
    }
  }
}

} // namespace

void batchNormKernel(const KernelContext& context, const void* arguments) {
  const auto& args = *static_cast<const BatchNormArguments*>(arguments);
  const auto [begin, end] = blockParts(context, args.channels);
  const double count = static_cast<double>(args.batch * args.spatial);
  for (int64_t channel = begin; channel < end; ++channel) {
    const auto [mean, variance] = momentsOf(args, channel);
    const double invstd = 1 / std::sqrt(variance + args.eps);
    args.saveMean[channel] = static_cast<float>(mean);
    args.saveInvstd[channel] = static_cast<float>(invstd);
    if (args.runningMean != nullptr) {
      args.runningMean[channel] = blend(args.runningMean[channel], mean, args.momentum);
    }
    if (args.runningVar != nullptr) {
      const double unbiased = variance * count / (count - 1);
      args.runningVar[channel] = blend(args.runningVar[channel], unbiased, args.momentum);
    }
    const double scale = invstd * (args.weight != nullptr ? args.weight[channel] : 1.0f);
    const double shift = (args.bias != nullptr ? args.bias[channel] : 0.0f) - mean * scale;
    scaleChannel(args, channel, static_cast<float>(scale), static_cast<float>(shift));
  }
}

void batchNormBackwardKernel(const KernelContext& context, const void* arguments) {
  const auto& args = *static_cast<const BatchNormBackwardArguments*>(arguments);
  const auto [begin, end] = blockParts(context, args.channels);
  const double count = static_cast<double>(args.batch * args.spatial);
  for (int64_t channel = begin; channel < end; ++channel) {
    const double invstd = args.saveInvstd[channel];
    const GradientSums sums = gradientSums(args, channel);
    if (args.gradInput != nullptr) {
      const double scale = invstd * (args.weight != nullptr ? args.weight[channel] : 1.0f);
      const double slope = sums.product * invstd * invstd / count;
      inputGradient(
          args,
          channel,
          static_cast<float>(scale),
          static_cast<float>(sums.gradient / count),
          static_cast<float>(slope));
    }
    if (args.gradWeight != nullptr) {
      args.gradWeight[channel] = static_cast<float>(sums.product * invstd);
    }
    if (args.gradBias != nullptr) {
      args.gradBias[channel] = static_cast<float>(sums.gradient);
    }
  }
}

} // namespace simdev::native
