// The placing allocator and the bookkeeping of one kernel's outputs.  See placement.h.
#include "aten/placement.h"

#include "aten/kernel_scope.h"
#include "runtime/delegate.h"
#include "runtime/workspace.h"

#include <ATen/ops/clone.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>

namespace simdev {

namespace {

thread_local OutputPlacement* currentPlacement = nullptr;

// All memory ever placed, and all of the workspaces, lies in here: the devices' backing memory is one reserved range of
// addresses, in which no other allocator works.  It is how a bare pointer is known not to be the host allocator's.
std::atomic<uintptr_t> deviceBegin{UINTPTR_MAX};
std::atomic<uintptr_t> deviceEnd{0};

void extendDeviceRange(void* address) {
  const auto pointer = reinterpret_cast<uintptr_t>(address);
  uintptr_t begin = deviceBegin.load(std::memory_order_relaxed);
  while (pointer < begin && !deviceBegin.compare_exchange_weak(begin, pointer)) {
  }
  uintptr_t end = deviceEnd.load(std::memory_order_relaxed);
  while (pointer >= end && !deviceEnd.compare_exchange_weak(end, pointer + 1)) {
  }
}

c10::DeleterFnPtr hostDeleter = nullptr;

// oneDNN frees its scratch memory by bare pointer, so one deleter must serve all kinds.
void release(void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address < deviceBegin.load(std::memory_order_relaxed) ||
      address >= deviceEnd.load(std::memory_order_relaxed)) {
    hostDeleter(pointer);
  } else {
    Workspace::instance().release(pointer); // what was placed is not owned: stream order keeps it alive
  }
}

class PlacementAllocator final : public c10::Allocator {
 public:
  explicit PlacementAllocator(c10::Allocator* host) : host_(host) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (C10_UNLIKELY(currentPlacement != nullptr) && bytes != 0) {
      if (void* pointer = currentPlacement->take(bytes)) {
        return owned(pointer);
      }
    }
    if (C10_UNLIKELY(KernelScope::device() >= 0) && bytes >= Workspace::kMinBytes) {
      if (void* pointer = Workspace::instance().allocate(KernelScope::device(), bytes)) {
        return owned(pointer);
      }
    }
    return host_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    host_->copy_data(dest, src, count);
  }

 private:
  static c10::DataPtr owned(void* pointer) {
    extendDeviceRange(pointer);
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::Allocator* host_;
};

bool contains(const at::Tensor& output, const void* pointer) {
  const auto* begin = static_cast<const char*>(output.storage().data());
  return pointer >= begin && pointer < begin + output.storage().nbytes();
}

} // namespace

OutputPlacement::OutputPlacement(at::TensorList outputs) : outputs_(outputs), previous_(currentPlacement) {
  const bool placesOutputs = activeDelegate() == nullptr; // whose memory is not in that range
  slots_.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.storage_offset() == 0 && placesOutputs) {
      slots_.push_back({output.storage().mutable_data(), output.storage().nbytes(), false});
    }
  }
  currentPlacement = this;
}

OutputPlacement::~OutputPlacement() {
  currentPlacement = previous_;
}

void* OutputPlacement::take(size_t bytes) noexcept {
  for (Slot& slot : slots_) {
    if (!slot.taken && slot.bytes == bytes) {
      slot.taken = true;
      return slot.pointer;
    }
  }
  return nullptr;
}

void OutputPlacement::finish(at::TensorList results) {
  // From here on allocations are temporaries, which must not take the place of an output that is about to be filled.
  currentPlacement = previous_;
  TORCH_INTERNAL_ASSERT(
      results.size() == outputs_.size(),
      "kernel returned ",
      results.size(),
      " tensors, inferred ",
      outputs_.size());
  std::vector<std::pair<at::Tensor, at::Tensor>> misplaced;
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& output = outputs_[i];
    const at::Tensor& result = results[i];
    if (!output.defined()) {
      continue;
    }
    TORCH_INTERNAL_ASSERT(
        result.defined() && result.sizes() == output.sizes() && result.scalar_type() == output.scalar_type(),
        "output ",
        i,
        " of the kernel is ",
        result.defined() ? c10::str(result.scalar_type(), result.sizes()) : "undefined",
        ", inferred ",
        output.scalar_type(),
        output.sizes());
    if (result.numel() == 0 ||
        (result.const_data_ptr() == output.const_data_ptr() && result.strides() == output.strides() &&
         result.is_conj() == output.is_conj() && result.is_neg() == output.is_neg())) {
      continue;
    }
    misplaced.emplace_back(output, result);
  }
  // Results may lie in one another's places (two outputs of equal size): save those before any is overwritten.
  for (auto& [output, result] : misplaced) {
    for (const at::Tensor& other : outputs_) {
      if (other.defined() && contains(other, result.const_data_ptr())) {
        result = at::clone(result);
        break;
      }
    }
  }
  for (auto& [output, result] : misplaced) {
    copyElements(output, result);
  }
}

void copyElements(const at::Tensor& dst, const at::Tensor& src) {
  if (dst.sizes() == src.sizes() && dst.strides() == src.strides() && src.is_non_overlapping_and_dense()) {
    dst.as_strided({dst.numel()}, {1}).copy_(src.as_strided({src.numel()}, {1}));
  } else {
    dst.copy_(src);
  }
}

void installPlacementAllocator() {
  c10::Allocator* host = c10::GetCPUAllocator();
  hostDeleter = host->raw_deleter();
  static PlacementAllocator allocator(host);
  c10::SetCPUAllocator(&allocator);
}

} // namespace simdev
