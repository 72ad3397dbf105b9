// Where operators get their randomness from.  See random.h.
#include "aten/random.h"

#include "aten/native/philox.h"
#include "driver/driver.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <iterator>

namespace simdev {

at::Generator kernelGenerator(const PhiloxState& state, c10::DeviceIndex index) {
  const c10::DeviceType type = driver().kernelDeviceType();
  if (type != c10::DeviceType::CPU) {
    at::Generator generator = at::globalContext().getAcceleratorHooksInterface(type).getNewGenerator(index);
    generator.set_current_seed(state.seed);
    generator.set_offset(state.offset);
    return generator;
  }
  // A seed would keep only 32 bits of what tells one call from another, so the whole state is filled.  The subsequence is
  // one that no native kernel uses.
  constexpr uint32_t kSubsequence = 0x7473776D;
  uint32_t words[at::MERSENNE_STATE_N];
  native::philox(state.seed, state.offset / 4, kSubsequence, words);
  at::mt19937_data_pod data{};
  data.seed_ = state.seed;
  data.left_ = 1; // the next number starts a new round
  data.seeded_ = true;
  std::copy(std::begin(words), std::end(words), data.state_.begin());
  at::mt19937 engine;
  engine.set_data(data);
  auto generator = at::make_generator<at::CPUGeneratorImpl>();
  generator.get<at::CPUGeneratorImpl>()->set_engine(engine);
  return generator;
}

at::Generator kernelGenerator(
    const std::optional<at::Generator>& generator,
    c10::Device device,
    uint64_t increment) {
  return kernelGenerator(getGeneratorOrDefault(generator, device.index()).reserve(increment), device.index());
}

} // namespace simdev
