// The device's random number generator: a seed and an offset, nothing else (CUDA's contract).
//
// Lives here: the state and who may advance it.  Does not live here: random operators, which are pure
// functions of the PhiloxState that reserve() hands them (csrc/aten), and the random numbers of graphs (graph.h).
#pragma once

#include "runtime/philox_state.h"

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <mutex>
#include <optional>

namespace simdev {

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  static constexpr size_t kStateBytes = 16; // seed, then offset, in host byte order

  explicit GeneratorImpl(c10::DeviceIndex device);

  static c10::DeviceType device_type();

  // Takes the next `increment` offsets (rounded up to a multiple of 4) and returns the state they start at, for a
  // kernel on the device's current stream.  While that is captured, each replay of the graph takes them instead.
  // Locks mutex_ itself: the caller must not hold it.
  PhiloxState reserve(uint64_t increment);

  // What graphsafe_set_state exchanges: generators that share it draw from one sequence.
  class State : public c10::intrusive_ptr_target {
   public:
    PhiloxPosition position() const;
    void setPosition(PhiloxPosition position);
    // Returns the position before it.
    PhiloxPosition advance(uint64_t increment);

   private:
    mutable std::mutex mutex_;
    PhiloxPosition position_{c10::default_rng_seed_val, 0};
  };
  using SharedState = c10::intrusive_ptr<State>;

  void set_current_seed(uint64_t seed) override; // also sets the offset to 0
  uint64_t current_seed() const override;
  uint64_t seed() override; // a non-deterministic seed
  void set_offset(uint64_t offset) override; // throws unless a multiple of 4
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override; // a CPU uint8 tensor of kStateBytes
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // Under a delegate driver whose generators are of the same kind, the delegate's generator that this one is;
  // it is bound when the runtime has started.  Default generators are the delegate's default ones.  Undefined
  // otherwise.
  const at::Generator& delegate() const;

 private:
  friend const at::Generator& getDefaultGenerator(c10::DeviceIndex device);

  GeneratorImpl(c10::DeviceIndex device, SharedState state);
  bool capturing() const;
  void refuseWhileCapturing(const char* function) const;
  void bindDelegate() const;
  GeneratorImpl* clone_impl() const override;

  SharedState state_; // until a delegate is bound
  bool isDefault_ = false;
  mutable std::once_flag bound_;
  mutable at::Generator delegate_;
};

// The device's default generator, made at its first use; -1 stands for the current device.  Initialises
// nothing.
const at::Generator& getDefaultGenerator(c10::DeviceIndex device = -1);
// The generator that an operator uses: the given one, checked to be on `device`, or the device's default.
GeneratorImpl& getGeneratorOrDefault(const std::optional<at::Generator>& generator, c10::DeviceIndex device);
// Seeds every device's default generator, those not made yet included.  Initialises nothing.
void manualSeedAll(uint64_t seed);

} // namespace simdev
