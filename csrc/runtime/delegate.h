// The runtime over a delegate driver: storages that are the delegate's own, and the one question that the other files ask.
//
// Lives here: how a simdev storage holds the delegate's storage, and the allocator that makes both.  Does not live here:
// streams and events (stream.cpp, guard.cpp), and how operators use it (csrc/aten/inline.h).
//
// A simdev tensor's storage is a shell: its DataPtr owns the delegate's StorageImpl (the inner storage), which owns the
// memory.  So a tensor of the delegate over the inner storage is the same memory with the delegate's own bookkeeping.
#pragma once

#include "driver/delegate_driver.h"
#include "runtime/device.h"

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>

namespace simdev {

// The delegate driver, once the runtime was started with one; else nullptr.
inline DelegateDriver* activeDelegate() noexcept {
  return C10_LIKELY(isInitialized()) ? driver().delegate() : nullptr;
}

// The delegate driver, for callers that know there is one; throws in a forked child.
inline DelegateDriver& startedDelegate() {
  lazyInit();
  return *driver().delegate();
}

using InnerStorage = c10::intrusive_ptr<c10::StorageImpl>;

// What a shell's DataPtr owns.
//
// A parameter is converted for a dozen kernels in each training step, and its tensor of the delegate is the same every
// time.  So the shell of a storage that is used again and again keeps one between calls.
class Shell {
 public:
  explicit Shell(InnerStorage inner) : inner_(std::move(inner)) {}
  ~Shell() { takeSpare(); }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  c10::StorageImpl* inner() const noexcept { return inner_.get(); }

  bool hasSpare() const noexcept { return spare_.load(std::memory_order_relaxed) != nullptr; }

  // A tensor over inner() that nobody uses, or nothing.
  c10::intrusive_ptr<c10::TensorImpl> takeSpare() noexcept {
    c10::TensorImpl* const spare = spare_.exchange(nullptr, std::memory_order_acquire);
    return spare == nullptr ? c10::intrusive_ptr<c10::TensorImpl>()
                            : c10::intrusive_ptr<c10::TensorImpl>::reclaim(spare);
  }
  // False for the first few calls, which are all that most storages see, and if there is one already; `tensor` is kept
  // only where it is true.
  bool keepSpare(c10::intrusive_ptr<c10::TensorImpl>& tensor) noexcept {
    const uint8_t calls = calls_.load(std::memory_order_relaxed);
    if (calls < kCallsBeforeKeeping) {
      calls_.store(static_cast<uint8_t>(calls + 1), std::memory_order_relaxed);
      return false;
    }
    c10::TensorImpl* none = nullptr;
    if (!spare_.compare_exchange_strong(none, tensor.get(), std::memory_order_release)) {
      return false;
    }
    tensor.release();
    return true;
  }

 private:
  static constexpr uint8_t kCallsBeforeKeeping = 4;

  InnerStorage inner_;
  std::atomic<c10::TensorImpl*> spare_{nullptr};
  std::atomic<uint8_t> calls_{0};
};

// The deleter of a shell's DataPtr, which is also what one is known by.
void releaseShell(void* shell);

// nullptr for memory that no shell holds (from_blob, ...).  Inline, as innerStorage() is, because each argument of each
// operator needs it.
inline Shell* shellOf(const c10::DataPtr& data) noexcept {
  return C10_LIKELY(data.get_deleter() == &releaseShell) ? static_cast<Shell*>(data.get_context()) : nullptr;
}
inline Shell* shellOf(const c10::StorageImpl& storage) noexcept {
  return shellOf(const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks());
}

// For storages without a shell: an inner one that keeps them alive.
InnerStorage adoptStorage(const c10::Storage& storage);
// The storage that a shell was made around.
inline InnerStorage innerStorage(const c10::Storage& storage) {
  const Shell* const shell = shellOf(*storage.unsafeGetStorageImpl());
  return C10_LIKELY(shell != nullptr) ? InnerStorage::reclaim_copy(shell->inner()) : adoptStorage(storage);
}
c10::Storage makeShell(InnerStorage inner, c10::DeviceIndex index);
// Makes the shell hold `inner`'s memory, which work on it may have replaced (resize_).
void updateShell(const c10::Storage& shell, const InnerStorage& inner);

} // namespace simdev
