// Random operators.  See random.h for where their randomness comes from.
//
// Distributions whose elements are independent and cheap have native kernels and are here.  Every other random operator of
// ATen (multinomial, poisson, randperm, ...) is launched by the generic tier with a kernelGenerator().
#include "csrc/aten/random.h"

#include "csrc/aten/backing.h"
#include "csrc/aten/checks.h"
#include "csrc/aten/factories.h"
#include "csrc/aten/launch_into.h"
#include "csrc/aten/native/kernel_launch.h"
#include "csrc/aten/native/philox.h"
#include "csrc/aten/native/random_kernels.h"
#include "csrc/driver/driver.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/binomial.h>
#include <ATen/ops/multinomial.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace simdev {

at::Generator kernelGenerator(const PhiloxState& state, c10::DeviceIndex index) {
  const PhiloxPosition start = native::positionOf(state);
  const c10::DeviceType type = driver().kernelDeviceType();
  if (type != c10::DeviceType::CPU) {
    at::Generator generator = at::globalContext().getAcceleratorHooksInterface(type).getNewGenerator(index);
    generator.set_current_seed(start.seed);
    generator.set_offset(start.offset);
    return generator;
  }
  // A seed would keep only 32 bits of what tells one call from another, so the whole state is filled.  The subsequence is
  // one that no native kernel uses.
  constexpr uint32_t kSubsequence = 0x7473776D;
  uint32_t words[at::MERSENNE_STATE_N];
  native::philox(start.seed, start.offset / 4, kSubsequence, words);
  at::mt19937_data_pod data{};
  data.seed_ = start.seed;
  data.left_ = 1; // the next number starts a new round
  data.seeded_ = true;
  std::copy(std::begin(words), std::end(words), data.state_.begin());
  at::mt19937 engine;
  engine.set_data(data);
  auto generator = at::make_generator<at::CPUGeneratorImpl>();
  generator.get<at::CPUGeneratorImpl>()->set_engine(engine);
  return generator;
}

namespace {

using native::Distribution;
using OptionalGenerator = std::optional<at::Generator>;

struct Draw {
  Distribution distribution;
  double a = 0;
  double b = 0;
  int64_t base = 0;
  uint64_t range = 0;
  at::Tensor probabilities = {}; // float, laid out as the output
};

const char* operatorName(Distribution distribution) {
  switch (distribution) {
    case Distribution::Uniform:
      return "aten::uniform_";
    case Distribution::Normal:
      return "aten::normal_";
    case Distribution::Exponential:
      return "aten::exponential_";
    case Distribution::Integers:
      return "aten::random_";
    case Distribution::Bernoulli:
    case Distribution::BernoulliEach:
      return "aten::bernoulli_";
    case Distribution::LogNormal:
      return "aten::log_normal_";
    case Distribution::Cauchy:
      return "aten::cauchy_";
    case Distribution::Geometric:
      return "aten::geometric_";
  }
  return "";
}

// For a chip without native kernels: the same draw by its ATen kernels, into a backing tensor.
void drawWithAten(const Draw& draw, at::Tensor output, const at::Generator& generator) {
  switch (draw.distribution) {
    case Distribution::Uniform:
      output.uniform_(draw.a, draw.b, generator);
      break;
    case Distribution::Normal:
      output.normal_(draw.a, draw.b, generator);
      break;
    case Distribution::Exponential:
      output.exponential_(draw.a, generator);
      break;
    case Distribution::Integers: {
      int64_t end = 0;
      const bool overflow = draw.range == 0 || draw.range > std::numeric_limits<int64_t>::max() ||
                            __builtin_add_overflow(draw.base, static_cast<int64_t>(draw.range), &end);
      output.random_(draw.base, overflow ? std::nullopt : std::optional<int64_t>(end), generator);
      break;
    }
    case Distribution::Bernoulli:
      output.bernoulli_(draw.a, generator);
      break;
    case Distribution::BernoulliEach:
      output.bernoulli_(draw.probabilities, generator);
      break;
    case Distribution::LogNormal:
      output.log_normal_(draw.a, draw.b, generator);
      break;
    case Distribution::Cauchy:
      output.cauchy_(draw.a, draw.b, generator);
      break;
    case Distribution::Geometric:
      output.geometric_(draw.a, generator);
      break;
  }
}

void launchDraw(const at::Tensor& self, Draw draw, const OptionalGenerator& generator) {
  at::assert_no_internal_overlap(self);
  const c10::Device device = self.device();
  const int64_t count = self.numel();
  const char* name = operatorName(draw.distribution);
  const PhiloxState state =
      getGeneratorOrDefault(generator, device.index()).reserve(static_cast<uint64_t>(count));
  // Kernels write memory from front to back, whatever the order of the dimensions.
  const at::Tensor target = self.is_non_overlapping_and_dense() ? self : emptyLike(self);
  if (native::hasNativeKernels()) {
    const KernelFunction kernel = native::randomKernel(draw.distribution, self.scalar_type());
    TORCH_CHECK_NOT_IMPLEMENTED(
        kernel != nullptr, '"', name, "\" not implemented for '", c10::toString(self.scalar_type()), "'");
    const native::RandomArguments arguments{
        native::kernelOutput(target),
        static_cast<const float*>(
            draw.probabilities.defined() ? native::kernelInput(draw.probabilities) : nullptr),
        count,
        state,
        draw.a,
        draw.b,
        draw.base,
        draw.range};
    native::launchKernel(device, name, kernel, native::gridForNumbers(count), arguments);
  } else {
    draw.probabilities = backing(draw.probabilities);
    launch(
        device,
        name,
        [draw = std::move(draw), output = backing(target), state, device] {
          drawWithAten(draw, output, kernelGenerator(state, device.index()));
        },
        isLarge(target));
  }
  if (!target.is_same(self)) {
    self.copy_(target);
  }
}

// --- The kernels that ATen's templates for distributions call after they have checked the arguments ---------------

template <typename RNG>
struct UniformKernel {
  void operator()(at::TensorIterator& iterator, double from, double to, const OptionalGenerator& generator) {
    launchDraw(iterator.tensor(0), {Distribution::Uniform, from, to}, generator);
  }
};

template <typename RNG>
struct NormalKernel {
  void operator()(const at::Tensor& self, double mean, double deviation, const OptionalGenerator& generator) {
    launchDraw(self, {Distribution::Normal, mean, deviation}, generator);
  }
};

template <typename RNG>
struct LogNormalKernel {
  void operator()(
      at::TensorIterator& iterator,
      double mean,
      double deviation,
      const OptionalGenerator& generator) {
    launchDraw(iterator.tensor(0), {Distribution::LogNormal, mean, deviation}, generator);
  }
};

template <typename RNG>
struct ExponentialKernel {
  void operator()(at::TensorIterator& iterator, double lambda, const OptionalGenerator& generator) {
    TORCH_CHECK(
        c10::isFloatingType(iterator.dtype()),
        "Exponential distribution is a continuous probability distribution. dtype must be a floating point "
        "but you "
        "specified ",
        iterator.dtype());
    launchDraw(iterator.tensor(0), {Distribution::Exponential, lambda}, generator);
  }
};

template <typename RNG>
struct CauchyKernel {
  void
  operator()(at::TensorIterator& iterator, double median, double sigma, const OptionalGenerator& generator) {
    launchDraw(iterator.tensor(0), {Distribution::Cauchy, median, sigma}, generator);
  }
};

template <typename RNG>
struct GeometricKernel {
  void operator()(at::TensorIterator& iterator, double p, const OptionalGenerator& generator) {
    launchDraw(iterator.tensor(0), {Distribution::Geometric, p}, generator);
  }
};

// random_() without bounds: every integer that the type can tell from its neighbours, from 0 up.
uint64_t naturalRange(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return (uint64_t{1} << 53) + 1;
    case c10::ScalarType::Float:
      return (uint64_t{1} << 24) + 1;
    case c10::ScalarType::Half:
      return (uint64_t{1} << 11) + 1;
    case c10::ScalarType::BFloat16:
      return (uint64_t{1} << 8) + 1;
    case c10::ScalarType::Bool:
      return 2;
    case c10::ScalarType::UInt64:
      return 0;
    default: {
      const size_t bits = 8 * c10::elementSize(type) - (c10::isSignedType(type) ? 1 : 0);
      return uint64_t{1} << bits;
    }
  }
}

template <typename RNG>
struct RandomKernel {
  void operator()(at::TensorIterator& iterator, const OptionalGenerator& generator) {
    launchDraw(
        iterator.tensor(0),
        {.distribution = Distribution::Integers, .range = naturalRange(iterator.dtype())},
        generator);
  }
};

template <typename RNG>
struct RandomFromToKernel {
  void
  operator()(at::TensorIterator& iterator, uint64_t range, int64_t base, const OptionalGenerator& generator) {
    launchDraw(
        iterator.tensor(0),
        {.distribution = Distribution::Integers, .base = base, .range = range},
        generator);
  }
  // All 64 bits.
  void operator()(at::TensorIterator& iterator, const OptionalGenerator& generator) {
    const c10::ScalarType type = iterator.dtype();
    TORCH_CHECK(
        type == c10::ScalarType::Long || type == c10::ScalarType::Double || type == c10::ScalarType::Float ||
            type == c10::ScalarType::BFloat16,
        "random_full_64_bits_range_kernel_cpu handles only int64, double, float and bfloat16");
    launchDraw(iterator.tensor(0), {.distribution = Distribution::Integers}, generator);
  }
};

template <typename RNG>
struct BernoulliKernel {
  void operator()(const at::Tensor& self, double p, const OptionalGenerator& generator) {
    launchDraw(self, {Distribution::Bernoulli, p}, generator);
  }
  void operator()(const at::Tensor& self, const at::Tensor& p, const OptionalGenerator& generator) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        c10::isFloatingType(p.scalar_type()),
        "\"bernoulli_tensor_cpu_p_\" not implemented for '",
        c10::toString(p.scalar_type()),
        "'");
    checkSameDevice(self.device(), {p});
    at::Tensor probabilities = p;
    if (p.scalar_type() != c10::ScalarType::Float || p.sizes() != self.sizes() ||
        p.strides() != self.strides() || !self.is_non_overlapping_and_dense() ||
        p.device() != self.device()) {
      probabilities = emptyLike(self, c10::ScalarType::Float);
      probabilities.copy_(p);
    }
    Draw draw{Distribution::BernoulliEach};
    draw.probabilities = std::move(probabilities);
    launchDraw(self, std::move(draw), generator);
  }
};

namespace templates = at::native::templates;

at::Tensor& uniform_(at::Tensor& self, double from, double to, OptionalGenerator generator) {
  return templates::uniform_impl_<UniformKernel, GeneratorImpl>(self, from, to, std::move(generator));
}

at::Tensor& normal_(at::Tensor& self, double mean, double deviation, OptionalGenerator generator) {
  return templates::normal_impl_<NormalKernel, GeneratorImpl>(self, mean, deviation, std::move(generator));
}

// The three overloads of normal and of normal.out differ in which of the two parameters is a tensor.
template <typename Mean, typename Deviation>
at::Tensor normal(Mean mean, Deviation deviation, OptionalGenerator generator) {
  return templates::normal_impl<NormalKernel, GeneratorImpl>(mean, deviation, std::move(generator));
}
template <typename Mean, typename Deviation>
at::Tensor& normalOut(Mean mean, Deviation deviation, OptionalGenerator generator, at::Tensor& out) {
  return templates::normal_out_impl<NormalKernel, GeneratorImpl>(out, mean, deviation, std::move(generator));
}

at::Tensor& log_normal_(at::Tensor& self, double mean, double deviation, OptionalGenerator generator) {
  return templates::log_normal_impl_<LogNormalKernel, GeneratorImpl>(
      self, mean, deviation, std::move(generator));
}

at::Tensor& exponential_(at::Tensor& self, double lambda, OptionalGenerator generator) {
  return templates::exponential_impl_<ExponentialKernel, GeneratorImpl>(self, lambda, std::move(generator));
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, OptionalGenerator generator) {
  return templates::cauchy_impl_<CauchyKernel, GeneratorImpl>(self, median, sigma, std::move(generator));
}

at::Tensor& geometric_(at::Tensor& self, double p, OptionalGenerator generator) {
  return templates::geometric_impl_<GeometricKernel, GeneratorImpl>(self, p, std::move(generator));
}

at::Tensor& random_(at::Tensor& self, OptionalGenerator generator) {
  return templates::random_impl<RandomKernel, GeneratorImpl>(self, std::move(generator));
}

at::Tensor&
randomFrom_(at::Tensor& self, int64_t from, std::optional<int64_t> to, OptionalGenerator generator) {
  return templates::random_from_to_impl<RandomFromToKernel, GeneratorImpl>(
      self, from, to, std::move(generator));
}

at::Tensor& randomTo_(at::Tensor& self, int64_t to, OptionalGenerator generator) {
  return randomFrom_(self, 0, to, std::move(generator));
}

at::Tensor& bernoulli_(at::Tensor& self, double p, OptionalGenerator generator) {
  return templates::bernoulli_impl_<BernoulliKernel, GeneratorImpl>(self, p, std::move(generator));
}

at::Tensor& bernoulliEach_(at::Tensor& self, const at::Tensor& p, OptionalGenerator generator) {
  return templates::bernoulli_impl_<BernoulliKernel, GeneratorImpl>(self, p, std::move(generator));
}

at::Tensor& bernoulliOut(const at::Tensor& self, OptionalGenerator generator, at::Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliKernel, GeneratorImpl>(out, self, std::move(generator));
}

// --- Operators that ATen's kernels sample but the generic tier cannot launch as they are ---------------------------

// Launches `run`, which samples with the generator that it is given and returns what `output` is to hold.
template <typename Function>
void launchSampling(
    const char* name,
    const at::Tensor& output,
    const OptionalGenerator& generator,
    Function run) {
  launchInto(
      output.device(),
      name,
      output,
      [run = std::move(run),
       state = getGeneratorOrDefault(generator, output.device().index())
                   .reserve(static_cast<uint64_t>(output.numel())),
       index = output.device().index()] { return run(kernelGenerator(state, index)); },
      isLarge(output));
}

// ATen's kernel counts up to `count`, which never ends where that is no number.
at::Tensor binomialOfNumbers(
    const at::Tensor& count,
    const at::Tensor& probability,
    const at::Generator& kernelGenerator) {
  const at::Tensor unknown = count.isnan();
  if (!unknown.any().item<bool>()) {
    return at::binomial(count, probability, kernelGenerator);
  }
  return at::binomial(count.masked_fill(unknown, 0), probability, kernelGenerator)
      .masked_fill_(unknown, std::numeric_limits<double>::quiet_NaN());
}

// The next two have no Meta kernel.
at::Tensor binomial(const at::Tensor& count, const at::Tensor& probability, OptionalGenerator generator) {
  checkSameDevice(count.device(), {probability});
  at::Tensor output = empty(count.sizes(), count.scalar_type(), count.device());
  launchSampling(
      "aten::binomial",
      output,
      generator,
      [count = backing(count), probability = backing(probability)](const at::Generator& kernelGenerator) {
        return binomialOfNumbers(count, probability, kernelGenerator);
      });
  return output;
}

at::Tensor sampleDirichlet(const at::Tensor& alpha, OptionalGenerator generator) {
  at::Tensor output = empty(alpha.sizes(), alpha.scalar_type(), alpha.device());
  launchSampling(
      "aten::_sample_dirichlet",
      output,
      generator,
      [alpha = backing(alpha)](const at::Generator& kernelGenerator) {
        return at::_sample_dirichlet(alpha, kernelGenerator);
      });
  return output;
}

// The Meta kernel of multinomial lets bad arguments pass, which the caller must hear of at once.
at::Tensor& multinomialOut(
    const at::Tensor& self,
    int64_t samples,
    bool replacement,
    OptionalGenerator generator,
    at::Tensor& out) {
  constexpr int64_t kMaxCategories = int64_t{1} << 24;
  TORCH_CHECK(out.device() == self.device(), "multinomial arguments must have the same device");
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      c10::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ",
      self.scalar_type());
  TORCH_CHECK(
      out.scalar_type() == c10::ScalarType::Long,
      "multinomial expects Long tensor out, got: ",
      out.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(
      replacement || samples <= self.size(-1),
      "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(self.size(-1) <= kMaxCategories, "number of categories cannot exceed 2^24");
  if (self.dim() == 1) {
    out.resize_({samples});
  } else {
    out.resize_({self.size(0), samples});
  }
  if (out.numel() != 0) {
    launchSampling(
        "aten::multinomial",
        out,
        generator,
        [self = backing(self), samples, replacement](const at::Generator& kernelGenerator) {
          return at::multinomial(self, samples, replacement, kernelGenerator);
        });
  }
  return out;
}

at::Tensor
multinomial(const at::Tensor& self, int64_t samples, bool replacement, OptionalGenerator generator) {
  at::Tensor out = empty({0}, c10::ScalarType::Long, self.device());
  return multinomialOut(self, samples, replacement, std::move(generator), out);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("uniform_", TORCH_FN(uniform_));
  m.impl("normal_", TORCH_FN(normal_));
  m.impl("normal.Tensor_float", TORCH_FN((normal<const at::Tensor&, double>)));
  m.impl("normal.float_Tensor", TORCH_FN((normal<double, const at::Tensor&>)));
  m.impl("normal.Tensor_Tensor", TORCH_FN((normal<const at::Tensor&, const at::Tensor&>)));
  m.impl("normal.Tensor_float_out", TORCH_FN((normalOut<const at::Tensor&, double>)));
  m.impl("normal.float_Tensor_out", TORCH_FN((normalOut<double, const at::Tensor&>)));
  m.impl("normal.Tensor_Tensor_out", TORCH_FN((normalOut<const at::Tensor&, const at::Tensor&>)));
  m.impl("log_normal_", TORCH_FN(log_normal_));
  m.impl("exponential_", TORCH_FN(exponential_));
  m.impl("cauchy_", TORCH_FN(cauchy_));
  m.impl("geometric_", TORCH_FN(geometric_));
  m.impl("random_", TORCH_FN(random_));
  m.impl("random_.from", TORCH_FN(randomFrom_));
  m.impl("random_.to", TORCH_FN(randomTo_));
  m.impl("bernoulli_.float", TORCH_FN(bernoulli_));
  m.impl("bernoulli_.Tensor", TORCH_FN(bernoulliEach_));
  m.impl("bernoulli.out", TORCH_FN(bernoulliOut));
  m.impl("binomial", TORCH_FN(binomial));
  m.impl("_sample_dirichlet", TORCH_FN(sampleDirichlet));
  m.impl("multinomial", TORCH_FN(multinomial));
  m.impl("multinomial.out", TORCH_FN(multinomialOut));
}

} // namespace simdev
