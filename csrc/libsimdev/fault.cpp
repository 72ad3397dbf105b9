// The handler for SIGSEGV and SIGBUS.
//
// It only adds a report on stderr for addresses that belong to devices, and then hands on to the handler that
// was there before.  Everything in it is async-signal-safe: no allocation, no stdio, no waiting for locks.
#include "fault.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "runtime.h"
#include "thread_state.h"

namespace sim {

namespace {

struct sigaction previousSegv, previousBus;

// A line of text on the stack.
class Line {
 public:
  Line& operator<<(const char* text) noexcept {
    while (*text != '\0' && length_ < sizeof text_) {
      text_[length_++] = *text++;
    }
    return *this;
  }
  Line& operator<<(uint64_t value) noexcept { return number(value, 10); }
  Line& hex(uint64_t value) noexcept {
    *this << "0x";
    return number(value, 16);
  }
  void write() noexcept {
    for (size_t done = 0; done < length_;) {
      const ssize_t count = ::write(STDERR_FILENO, text_ + done, length_ - done);
      if (count <= 0) {
        return;
      }
      done += static_cast<size_t>(count);
    }
  }

 private:
  Line& number(uint64_t value, unsigned base) noexcept {
    char digits[24] = {};
    size_t at = sizeof digits - 1;
    do {
      digits[--at] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    return *this << digits + at;
  }

  char text_[1024];
  size_t length_ = 0;
};

const char* accessOf([[maybe_unused]] void* context) noexcept {
#if defined(__x86_64__)
  const auto* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  return (registers[REG_ERR] & 2) != 0 ? "write" : "read"; // the page fault error code's W bit
#else
  return "access";
#endif
}

void describeAllocation(Line& line, Runtime& runtime, int device, uintptr_t pointer) noexcept {
  const auto found = runtime.devices()[device]->memory().tryFind(reinterpret_cast<void*>(pointer));
  line << "device " << static_cast<uint64_t>(device) << ", ";
  if (found) {
    line << "allocation of " << found->size << " bytes at ";
    line.hex(found->base) << ", offset " << pointer - found->base << "\n";
  } else {
    line << "not inside any live allocation\n";
  }
}

void report(Runtime& runtime, uintptr_t address, void* context) noexcept {
  const char* const who = thisThread.execution != nullptr ? "device code" : "host";
  Line line;
  line << "simdev: " << who << " " << accessOf(context) << " of ";
  const AddressSpace& space = runtime.space();
  if (const int device = space.deviceOf(reinterpret_cast<void*>(address)); device >= 0) {
    line << "device memory at ";
    line.hex(address) << ": ";
    describeAllocation(line, runtime, device, address);
    line
        << (thisThread.execution != nullptr
                ? "  Kernels find device memory through simLocalPointer() or simTranslatePointer().\n"
                : "  The host cannot use device memory: copy it first (simMemcpy, or tensor.cpu()).\n");
  } else if (const AddressSpace::Image image = space.imageOf(address); image.device == image.owner) {
    if (image.device < 0) {
      return; // none of our addresses
    }
    line << "device memory at ";
    line.hex(image.pointer) << ": ";
    describeAllocation(line, runtime, image.owner, image.pointer);
    line << "  No memory is there: an index out of range, or a pointer that was freed.\n";
  } else {
    line << "memory of another device at ";
    line.hex(image.pointer) << ": ";
    describeAllocation(line, runtime, image.owner, image.pointer);
    line << "  Code of device " << static_cast<uint64_t>(image.device)
         << " took it for its own: copy it, or enable peer access and use simTranslatePointer().\n";
  }
  line.write();
}

void onFault(int signal, siginfo_t* info, void* context) {
  // si_code <= 0: sent by kill() or raise(), without an address.
  if (Runtime* const runtime = Runtime::ifStarted(); runtime != nullptr && info->si_code > 0) {
    report(*runtime, reinterpret_cast<uintptr_t>(info->si_addr), context);
  }
  const struct sigaction& previous = signal == SIGSEGV ? previousSegv : previousBus;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // Without a handler: once we return, the access is repeated, and ends the process as if we had never been
    // here.
    ::signal(signal, SIG_DFL);
    if (info->si_code <= 0) {
      raise(signal);
    }
  }
}

} // namespace

void installFaultReporter() noexcept {
  struct sigaction action = {};
  action.sa_sigaction = onFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previousSegv);
  sigaction(SIGBUS, &action, &previousBus);
}

} // namespace sim
