// Memory for the temporaries that ATen's kernels allocate while they run on the device.
//
// They ask the host's allocator, and a large block from malloc is new pages each time: a convolution in training would
// spend a tenth of its time in page faults.  So these blocks come from the device's memory, as cuBLAS's and cuDNN's
// workspaces do, and are kept for the next kernel.  They cannot come from the caching allocator, whose blocks are free in the
// order of the host's calls: what the host has freed, work that is still queued may be using.
#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace simdev {

class Workspace {
 public:
  // Smaller blocks are malloc's: it keeps those itself.
  static constexpr size_t kMinBytes = size_t(64) << 10;

  static Workspace& instance();

  // An address as kernels see it, aligned to 512 bytes; nullptr when the device has no memory left, or none for this.
  void* allocate(c10::DeviceIndex device, size_t bytes) noexcept;
  // Takes a block back, from any thread.  Any other pointer is left alone.
  void release(void* pointer) noexcept;
  // Returns the device's unused blocks to the driver, which may wait for work in progress: not for the device's threads.
  void trim(c10::DeviceIndex device) noexcept;

  // While it lives, the device's workspace has no memory: kernels use the host's.  For the caching allocator, which is
  // about to run out: work that is queued must not take again what trim() has given back.
  class Pause {
   public:
    explicit Pause(c10::DeviceIndex device);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    c10::DeviceIndex device_;
  };

 private:
  struct Block {
    c10::DeviceIndex device;
    void* base; // the driver's pointer
    size_t bytes;
  };
  struct Device {
    std::multimap<size_t, Block> unused; // by size
    int used = 0; // number of blocks that kernels have or are about to get
    int pauses = 0;
  };

  // What every use ends with; the block is kept, unless there was none to get.  Called with the mutex held.
  void finish(c10::DeviceIndex device, const std::optional<Block>& block);

  std::mutex mutex_;
  std::condition_variable idle_; // a device has no used block any more
  std::unordered_map<void*, Block> used_;
  std::map<c10::DeviceIndex, Device> devices_;
};

} // namespace simdev
