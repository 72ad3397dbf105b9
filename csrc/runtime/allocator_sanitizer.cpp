// Filling and checking of free blocks.  See allocator_sanitizer.h.
#include "runtime/allocator_sanitizer.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace simdev {

namespace {

constexpr unsigned char kPoison = 0xFF;

class PoisonCheck final : public Task {
 public:
  PoisonCheck(c10::DeviceIndex device, void* pointer, size_t size)
      : pointer_(pointer),
        bytes_(static_cast<const unsigned char*>(driver().kernelPointer(device, pointer))),
        size_(size) {}

  void run() override {
    const auto* changed =
        std::find_if(bytes_, bytes_ + size_, [](unsigned char byte) { return byte != kPoison; });
    TORCH_CHECK(
        changed == bytes_ + size_,
        "simdev memory sanitizer: the free block of ",
        size_,
        " bytes at ",
        pointer_,
        " was written to, first at byte ",
        changed - bytes_,
        ". Something used a tensor after it was freed, as a rule on another stream without "
        "Tensor.record_stream() or an event to wait for");
  }
  const char* name() const noexcept override { return "simdev::memory_sanitizer"; }

 private:
  void* pointer_;
  const unsigned char* bytes_;
  size_t size_;
};

} // namespace

bool poison(void* pointer, size_t size, StreamHandle stream) noexcept {
  try {
    driver().memsetAsync(pointer, kPoison, size, stream);
    return true;
  } catch (...) { // freeing cannot fail, and whatever is wrong with the stream is reported by its next use
    return false;
  }
}

void checkPoison(c10::DeviceIndex device, void* pointer, size_t size, StreamHandle stream) {
  if (driver().kernelDeviceType() == c10::DeviceType::CPU) {
    driver().launch(stream, std::make_unique<PoisonCheck>(device, pointer, size));
  }
}

} // namespace simdev
