// A kernel that torch.compile has generated, ready to be launched.
//
// Lives here: packing arguments the way simdev_kernel.h reads them, and the launch.  Does not live here: Python
// (bindings/compile.cpp) and generating or compiling the kernel (torch_simdev/compile).
#pragma once

#include "driver/driver.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simdev {

// What one argument is, and the letter that stands for it in a signature.
enum class ArgumentKind : char {
  Tensor = 't', // memory of the device
  HostScalar = 'h', // a one-element host tensor, captured by value at the launch
  Int = 'i', // 8 bytes
  Float = 'f',
  Double = 'd',
  Bool = 'b',
};

class CompiledKernel {
 public:
  // `entry` is the library's kernel_entry, which stays loaded.  `name` is shown in errors and profiles.
  // Throws ValueError for a letter that names no kind of argument.
  CompiledKernel(KernelFunction entry, const std::string& name, std::string_view signature);

  const char* name() const noexcept { return name_; }
  size_t size() const noexcept { return kinds_.size(); }
  ArgumentKind kind(size_t index) const noexcept { return kinds_[index]; }
  std::string signature() const;

  // The arguments of one launch, added in order.
  class Arguments {
   public:
    explicit Arguments(const CompiledKernel& kernel) : kernel_(kernel) { slots_.resize(kernel.size()); }
    // Throws TypeError for a tensor that is not what the kernel was compiled for.
    void add(const at::Tensor& tensor);
    template <typename T>
    void add(T number) noexcept {
      static_assert(sizeof(T) <= sizeof(uint64_t));
      std::memcpy(&slots_[next_++], &number, sizeof number);
    }

   private:
    friend class CompiledKernel;
    const CompiledKernel& kernel_;
    c10::SmallVector<uint64_t, 32> slots_; // elements of host scalars follow the arguments
    size_t next_ = 0;
    c10::DeviceIndex device_ = -1; // of the tensors
  };

  // Runs the kernel on the current stream of the device that its tensors are on, and returns at once.
  void launch(const Arguments& arguments) const;

 private:
  KernelFunction entry_;
  const char* name_; // of static lifetime: an error may be reported after everything else is gone
  std::vector<ArgumentKind> kinds_;
};

} // namespace simdev
