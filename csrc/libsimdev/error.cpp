// Names and texts of errors, and the last error of each thread.
#include "error.h"

#include <cstdarg>
#include <cstdio>

#include "thread_state.h"

namespace sim {

constinit thread_local ThreadState thisThread;

namespace {

// Apart from ThreadState because its destructor makes every access slower, and only failing calls need it.
// Calls may still fail after it has run: in destructors of static objects, for instance.
struct Detail {
  std::string text;
  ~Detail() { thisThread.detailGone = true; }
};
thread_local Detail lastDetail;

struct ErrorText {
  simError_t code;
  const char* name;
  const char* text;
};

#define SIM_ERROR(code, text) {code, #code, text}
constexpr ErrorText kErrors[] = {
    SIM_ERROR(simSuccess, "no error"),
    SIM_ERROR(simErrorInvalidValue, "invalid argument"),
    SIM_ERROR(simErrorMemoryAllocation, "out of memory"),
    SIM_ERROR(simErrorInitializationError, "the runtime could not be initialised"),
    SIM_ERROR(simErrorRuntimeUnloading, "the process is exiting"),
    SIM_ERROR(simErrorInvalidConfiguration, "invalid launch configuration"),
    SIM_ERROR(simErrorInvalidMemcpyDirection, "a pointer is not on the side the kind of the copy says"),
    SIM_ERROR(simErrorInvalidDevice, "invalid device ordinal"),
    SIM_ERROR(simErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    SIM_ERROR(simErrorInvalidResourceHandle, "invalid resource handle"),
    SIM_ERROR(simErrorNotReady, "the work has not finished yet"),
    SIM_ERROR(simErrorIllegalAddress, "device memory outside of any allocation"),
    SIM_ERROR(simErrorLaunchOutOfResources, "a worker thread could not be started"),
    SIM_ERROR(simErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    SIM_ERROR(simErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    SIM_ERROR(simErrorLaunchFailure, "device-side failure"),
    SIM_ERROR(simErrorNotPermitted, "a call that waits is not permitted in device code"),
    SIM_ERROR(simErrorNotSupported, "operation not supported"),
    SIM_ERROR(simErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    SIM_ERROR(simErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    SIM_ERROR(simErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    SIM_ERROR(simErrorStreamCaptureUnmatched, "capture was not begun on this stream"),
    SIM_ERROR(simErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    SIM_ERROR(simErrorStreamCaptureIsolation, "dependency created on work outside of the capture"),
    SIM_ERROR(
        simErrorCapturedEvent,
        "operation not permitted on an event last recorded in a capturing stream"),
    SIM_ERROR(simErrorStreamCaptureWrongThread, "attempt to end a thread-local capture from another thread"),
    SIM_ERROR(simErrorGraphExecUpdateFailure, "the graphs differ in more than the arguments of their nodes"),
    SIM_ERROR(
        simErrorBadFork,
        "the runtime cannot be used in a forked child of a process that had initialised it"),
    SIM_ERROR(simErrorUnknown, "unknown error"),
};
#undef SIM_ERROR

const ErrorText& textOf(simError_t code) noexcept {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) {
      return error;
    }
  }
  return kErrors[std::size(kErrors) - 1];
}

} // namespace

void fail(simError_t code, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Failure{code, text};
}

void fail(simError_t code) {
  throw Failure{code, {}};
}

simError_t keepError(simError_t code, std::string detail) noexcept {
  thisThread.lastError = code;
  if (!thisThread.detailGone) {
    lastDetail.text = std::move(detail);
  }
  return code;
}

} // namespace sim

const char* simGetErrorName(simError_t error) {
  return sim::textOf(error).name;
}

const char* simGetErrorString(simError_t error) {
  return sim::textOf(error).text;
}

simError_t simGetLastError() {
  return std::exchange(sim::thisThread.lastError, simSuccess);
}

simError_t simPeekAtLastError() {
  return sim::thisThread.lastError;
}

const char* simGetLastErrorDetail() {
  return sim::thisThread.detailGone ? "" : sim::lastDetail.text.c_str();
}
