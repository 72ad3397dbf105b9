// How failures travel inside the library, and how they leave it.
//
// Inside, a function that cannot do its job throws a Failure; only the C functions catch (api() below), which
// turns it into a simError_t and keeps it for simGetLastError().  Failures of device code that arrive later
// are AsyncErrors, kept by streams (stream.h).
#pragma once

#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "simdev.h"

namespace sim {

struct Failure {
  simError_t code;
  std::string detail; // what simGetLastErrorDetail() says; may be empty
};

// printf-style detail.
[[noreturn]] void fail(simError_t code, const char* format, ...) __attribute__((format(printf, 2, 3), cold));
[[noreturn]] void fail(simError_t code) __attribute__((cold));

// Keeps the error for the calling thread and returns it.
simError_t keepError(simError_t code, std::string detail) noexcept __attribute__((cold));

// The body of every C function.  It returns nothing, or a simError_t: simErrorNotReady is the one that is an
// answer.
template <class Body>
simError_t api(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return simSuccess;
    } else {
      return body();
    }
  } catch (Failure& failure) {
    return keepError(failure.code, std::move(failure.detail));
  } catch (const std::bad_alloc&) {
    return keepError(simErrorMemoryAllocation, "the host is out of memory");
  } catch (const std::system_error& error) {
    return keepError(simErrorLaunchOutOfResources, error.what());
  } catch (...) {
    return keepError(simErrorUnknown, {});
  }
}

template <class T>
T* notNull(T* pointer, const char* argument) {
  if (pointer == nullptr) [[unlikely]] {
    fail(simErrorInvalidValue, "%s must not be null", argument);
  }
  return pointer;
}

inline void noFlags(unsigned flags) {
  if (flags != 0) [[unlikely]] {
    fail(simErrorInvalidValue, "flags must be 0, not %u", flags);
  }
}

} // namespace sim
