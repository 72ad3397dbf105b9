// Generator state, and the default generators of the devices.
#include "runtime/generator.h"

#include "runtime/delegate.h"
#include "runtime/device.h"
#include "runtime/graph.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

namespace simdev {

namespace {

constexpr uint64_t kOffsetStep = 4;

void checkOffset(uint64_t offset) {
  TORCH_CHECK(offset % kOffsetStep == 0, "offset must be a multiple of 4, but is ", offset);
}

// Guards both members.  The generators are made on first use and live until the process ends.
struct DefaultGenerators {
  std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val; // for generators that are yet to be made
  std::array<at::Generator, kMaxDevices> generators;
};

DefaultGenerators& defaultGenerators() {
  static auto* instance = new DefaultGenerators;
  return *instance;
}

} // namespace

PhiloxPosition GeneratorImpl::State::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

void GeneratorImpl::State::setPosition(PhiloxPosition position) {
  const std::lock_guard lock(mutex_);
  position_ = position;
}

PhiloxPosition GeneratorImpl::State::advance(uint64_t increment) {
  const std::lock_guard lock(mutex_);
  const PhiloxPosition before = position_;
  position_.offset += increment;
  return before;
}

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device) : GeneratorImpl(device, c10::make_intrusive<State>()) {}

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device, SharedState state)
    : c10::GeneratorImpl(
          c10::Device(kDeviceType, device),
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::move(state)) {}

c10::DeviceType GeneratorImpl::device_type() {
  return kDeviceType;
}

const at::Generator& GeneratorImpl::delegate() const {
  DelegateDriver* const driver = activeDelegate();
  if (C10_UNLIKELY(driver != nullptr && driver->hasPhiloxGenerators())) {
    std::call_once(bound_, [this] { bindDelegate(); });
  }
  return delegate_;
}

void GeneratorImpl::bindDelegate() const {
  if (delegate_.defined()) {
    return; // a state handed out by graphsafe_get_state()
  }
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(activeDelegate()->type());
  const c10::DeviceIndex index = device().index();
  delegate_ = isDefault_ ? hooks.getDefaultGenerator(index) : hooks.getNewGenerator(index);
  const std::lock_guard<std::mutex> lock(delegate_.mutex());
  // torch.manual_seed() has seeded the delegate's default generator too, which may have been used since.
  const PhiloxPosition own = state_->position();
  const bool untouched = own.seed == c10::default_rng_seed_val && own.offset == 0;
  const bool sameSeed = own.seed == delegate_.current_seed() && own.offset == 0;
  if (!isDefault_ || !(untouched || sameSeed)) {
    delegate_.set_current_seed(own.seed);
    delegate_.set_offset(own.offset);
  }
}

PhiloxState GeneratorImpl::reserve(uint64_t increment) {
  std::lock_guard<std::mutex> lock(mutex_);
  increment = (increment + kOffsetStep - 1) / kOffsetStep * kOffsetStep;
  if (delegate().defined()) {
    const PhiloxPosition start{delegate_.current_seed(), delegate_.get_offset()};
    delegate_.set_offset(start.offset + increment);
    return {start};
  }
  if (Graph* const graph = capturingGraph(currentStreamHandle(device().index()))) {
    return graph->reserve(state_, increment);
  }
  return {state_->advance(increment)};
}

bool GeneratorImpl::capturing() const {
  return isInitialized() && capturingGraph(currentStreamHandle(device().index())) != nullptr;
}

// What is captured draws where the generator will be at the replay: changing where it is now would have no effect.
void GeneratorImpl::refuseWhileCapturing(const char* function) const {
  TORCH_CHECK(
      !capturing(),
      "Cannot call Generator.",
      function,
      "() of a simdev generator while the current stream is captured");
}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  if (delegate().defined()) {
    delegate_.set_current_seed(seed);
    return;
  }
  if (seed == state_->position().seed && capturing()) {
    return; // CUDA allows a program to seed as it did before
  }
  refuseWhileCapturing("manual_seed");
  state_->setPosition({seed, 0});
}

uint64_t GeneratorImpl::current_seed() const {
  return delegate().defined() ? delegate_.current_seed() : state_->position().seed;
}

uint64_t GeneratorImpl::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(/*is_cuda=*/true);
  set_current_seed(random);
  return random;
}

void GeneratorImpl::set_offset(uint64_t offset) {
  checkOffset(offset);
  if (delegate().defined()) {
    delegate_.set_offset(offset);
    return;
  }
  refuseWhileCapturing("set_offset");
  state_->setPosition({state_->position().seed, offset});
}

uint64_t GeneratorImpl::get_offset() const {
  return delegate().defined() ? delegate_.get_offset() : state_->position().offset;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK_TYPE(
      state.layout() == c10::kStrided && state.device_type() == c10::kCPU && state.dtype() == at::kByte,
      "RNG state must be a torch.ByteTensor");
  // A state without an offset is the seed alone, as CUDA accepts it.
  const int64_t bytes = state.numel();
  TORCH_CHECK(
      (bytes == kStateBytes || bytes == sizeof(uint64_t)) && state.is_contiguous(),
      "RNG state is wrong size: simdev's has ",
      kStateBytes,
      " contiguous bytes, got ",
      bytes);
  PhiloxPosition philox;
  const auto* data = static_cast<const char*>(state.data());
  std::memcpy(&philox.seed, data, sizeof(uint64_t));
  if (bytes == kStateBytes) {
    std::memcpy(&philox.offset, data + sizeof(uint64_t), sizeof(uint64_t));
  }
  checkOffset(philox.offset);
  if (delegate().defined()) {
    delegate_.set_current_seed(philox.seed);
    delegate_.set_offset(philox.offset);
    return;
  }
  refuseWhileCapturing("set_state");
  state_->setPosition(philox);
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  static_assert(sizeof(PhiloxPosition) == kStateBytes);
  at::Tensor state =
      at::empty({static_cast<int64_t>(kStateBytes)}, at::TensorOptions().dtype(at::kByte).device(c10::kCPU));
  const PhiloxPosition philox{current_seed(), get_offset()};
  std::memcpy(state.mutable_data_ptr(), &philox, kStateBytes);
  return state.getIntrusivePtr();
}

void GeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  auto* other = dynamic_cast<GeneratorImpl*>(state.get());
  TORCH_CHECK_TYPE(other != nullptr, "graphsafe_set_state expects the state of a simdev generator");
  if (delegate().defined()) {
    delegate_.graphsafe_set_state(other->delegate());
    return;
  }
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> GeneratorImpl::graphsafe_get_state() const {
  auto shared = c10::intrusive_ptr<GeneratorImpl>::reclaim(new GeneratorImpl(device().index(), state_));
  if (delegate().defined()) {
    shared->delegate_ = delegate_.graphsafe_get_state();
  }
  return shared;
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto state = c10::make_intrusive<State>();
  state->setPosition({current_seed(), get_offset()});
  return new GeneratorImpl(device().index(), std::move(state));
}

const at::Generator& getDefaultGenerator(c10::DeviceIndex device) {
  device = resolveDeviceIndex(device);
  auto& defaults = defaultGenerators();
  std::lock_guard<std::mutex> lock(defaults.mutex);
  at::Generator& generator = defaults.generators[device];
  if (!generator.defined()) {
    generator = at::make_generator<GeneratorImpl>(device);
    generator.get<GeneratorImpl>()->isDefault_ = true;
    generator.set_current_seed(defaults.seed);
  }
  return generator;
}

GeneratorImpl& getGeneratorOrDefault(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  const at::Generator& chosen =
      generator.has_value() && generator->defined() ? *generator : getDefaultGenerator(device);
  TORCH_CHECK(
      chosen.device().type() == kDeviceType,
      "Expected a '",
      kDeviceType,
      "' device type for generator but found '",
      chosen.device().type(),
      "'");
  // A generator of ours brings a tensor of the host here, whose device has no index.
  TORCH_CHECK(device >= 0, "Expected a 'cpu' device type for generator but found '", kDeviceType, "'");
  TORCH_CHECK(
      chosen.device().index() == device,
      "Expected a generator of ",
      c10::Device(kDeviceType, device),
      " but found one of ",
      chosen.device());
  return *chosen.get<GeneratorImpl>();
}

void manualSeedAll(uint64_t seed) {
  auto& defaults = defaultGenerators();
  std::lock_guard<std::mutex> lock(defaults.mutex);
  defaults.seed = seed;
  for (at::Generator& generator : defaults.generators) {
    if (generator.defined()) {
      std::lock_guard<std::mutex> generatorLock(generator.mutex());
      generator.set_current_seed(seed);
    }
  }
}

} // namespace simdev
