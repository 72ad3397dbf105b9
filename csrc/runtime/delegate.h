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
#include <c10/util/intrusive_ptr.h>

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

// The storage that a shell was made around.  Other storages (from_blob, ...) get an inner one that keeps them alive.
InnerStorage innerStorage(const c10::Storage& shell);
c10::Storage makeShell(InnerStorage inner, c10::DeviceIndex index);
// Makes the shell hold `inner`'s memory, which work on it may have replaced (resize_).
void updateShell(const c10::Storage& shell, const InnerStorage& inner);

} // namespace simdev
