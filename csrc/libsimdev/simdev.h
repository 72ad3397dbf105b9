/* The public C API of the simulated accelerator.
 *
 * Lives here: everything a program needs to use the chip, in plain C99.  Does not live here: how the chip
 * works (the .cpp files beside this one) and anything about PyTorch.
 *
 * The vocabulary is the CUDA runtime's, with `sim` for `cuda`; whoever knows that API knows this one.  What
 * holds for every function:
 *
 *  - The result is a simError_t.  No exception leaves the library and no call aborts the process, whatever is
 *    passed.  Handles are checked, also those that were destroyed long ago or never were handles.
 *  - Every function may be called from any thread, at any time.  Functions that wait (synchronise, free,
 *    blocking copies) are refused with simErrorNotPermitted inside device code (kernels, tasks, host
 *    functions).
 *  - The runtime starts itself at the first call that needs it, see "Initialisation" below.
 *  - Errors of a call are also kept per thread for simGetLastError(); simErrorNotReady is an answer and is
 *    not kept.
 *
 * Environment variables, read when the runtime starts (sizes: bytes, or a number with K, M, G, T, KiB, MiB,
 * GiB, TiB; all of them powers of 1024).  A malformed value makes the call that needed it fail with
 * simErrorInvalidValue, and simGetLastErrorDetail() names the variable, the value and what is accepted.
 *
 *   variable                default                          meaning
 *   SIMDEV_DEVICE_COUNT     2                                number of devices, 0 to 64
 *   SIMDEV_MEMORY_LIMIT     16 GiB, at most 3/4 of the RAM   memory of each device, 2 MiB to 16 TiB
 *   SIMDEV_NUM_THREADS      CPUs this process may use, or    compute threads of each device, 1 to 1024
 *                           OMP_NUM_THREADS if smaller
 *   SIMDEV_IDLE_MEMORY      1 GiB                            freed memory that each device keeps for reuse
 *   SIMDEV_LAUNCH_BLOCKING  0                                1: every launch and copy waits until it has
 *                                                            finished, and reports its own errors
 *   SIMDEV_STICKY_ERRORS    0                                1: an error in a kernel is never cleared, as on
 *                                                            a GPU
 */
#ifndef SIMDEV_H
#define SIMDEV_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SIM_API __attribute__((visibility("default")))
#else
#define SIM_API
#endif

/* In C++, an enum that can hold every int: what callers pass is checked, not assumed. */
#ifdef __cplusplus
#define SIM_ANY_INT : int
extern "C" {
#else
#define SIM_ANY_INT
#endif

#define SIM_VERSION 1000 /* 1000 * major + 10 * minor */

/* --- Errors --------------------------------------------------------------------------------------------- */

/* The numbers are those of the CUDA runtime where it has the same error. */
typedef enum simError SIM_ANY_INT {
  simSuccess = 0,
  simErrorInvalidValue = 1, /* an argument, or an environment variable, is out of range */
  simErrorMemoryAllocation = 2, /* device or host memory is exhausted */
  simErrorInitializationError = 3, /* the runtime could not start; the detail says why */
  simErrorRuntimeUnloading = 4, /* the process is exiting */
  simErrorInvalidConfiguration = 9, /* grid or block dimensions */
  simErrorInvalidMemcpyDirection = 21, /* a pointer is not on the side that the copy's kind says */
  simErrorInvalidDevice = 101,
  simErrorPeerAccessUnsupported = 217, /* a device is not its own peer */
  simErrorInvalidResourceHandle = 400, /* a null or destroyed handle, or one of another device */
  simErrorNotReady = 600, /* not an error: the work that was asked about has not finished yet */
  simErrorIllegalAddress = 700, /* device memory outside of an allocation */
  simErrorLaunchOutOfResources = 701, /* a worker thread could not be started */
  simErrorPeerAccessAlreadyEnabled = 704,
  simErrorPeerAccessNotEnabled = 705,
  simErrorLaunchFailure = 719, /* code on the device failed; the detail is "kernel name: message" */
  simErrorNotPermitted = 800, /* a call that waits was made by device code */
  simErrorNotSupported = 801,
  simErrorStreamCaptureUnsupported = 900, /* not permitted while the stream is capturing */
  simErrorStreamCaptureInvalidated = 901, /* an earlier error has spoilt the capture */
  simErrorStreamCaptureMerge = 902, /* two captures would become one */
  simErrorStreamCaptureUnmatched = 903, /* the capture was begun on another stream */
  simErrorStreamCaptureUnjoined = 904, /* a forked stream was not joined to the origin */
  simErrorStreamCaptureIsolation = 905, /* a capture would depend on work outside of it */
  simErrorCapturedEvent = 907, /* the event was recorded in a capture, it never happens by itself */
  simErrorStreamCaptureWrongThread = 908, /* another thread than the one that began it */
  simErrorGraphExecUpdateFailure = 910, /* the graphs differ in more than arguments */
  simErrorBadFork = 998, /* a child process cannot use the runtime its parent had initialised */
  simErrorUnknown = 999
} simError_t;

/* "simErrorInvalidValue"; "simErrorUnknown" for a number that is none of the above.  Static storage. */
SIM_API const char* simGetErrorName(simError_t error);
/* One sentence for humans, without a full stop.  Static storage. */
SIM_API const char* simGetErrorString(simError_t error);
/* The last error that a call on this thread returned, and resets it to simSuccess. */
SIM_API simError_t simGetLastError(void);
/* The same without the reset. */
SIM_API simError_t simPeekAtLastError(void);
/* What exactly went wrong in this thread's most recent failed call; "" when there is nothing to add
 * to the error's string.  For an error of device code, "kernel name: message".  Valid until this thread's
 * next call. */
SIM_API const char* simGetLastErrorDetail(void);

/* Errors of device code.  A launch returns before its kernel has run.  When the kernel fails
 * (simKernelFail(), or a C++ exception that leaves it) the error waits on its stream, and is returned, once,
 * by the next of these calls: a launch, copy, memset or graph launch into the stream,
 * simStreamSynchronize/simStreamQuery of it (the latter once it is idle), simEventSynchronize of an event
 * recorded on it, simDeviceSynchronize of its device.  A launch that reports an earlier error does not
 * launch.  The first error is the one that is kept.  Work that was already queued behind the failed kernel
 * still runs, and the device goes on working.
 *
 * With SIMDEV_STICKY_ERRORS=1 the whole device has failed instead: what is queued is dropped (completing its
 * events), and every call named above, on any stream of the device, returns the same error until the process
 * ends. */

/* --- Initialisation ------------------------------------------------------------------------------------- */

typedef enum simRuntimeState SIM_ANY_INT {
  simRuntimeUninitialized = 0, /* no thread, no memory, no signal handler yet */
  simRuntimeReady = 1,
  simRuntimeBadFork = 2, /* this process is a fork of one that was Ready */
  simRuntimeUnloading = 3 /* exit() has been called */
} simRuntimeState;

/* Starts the runtime now: reads the environment, reserves address space, installs the fault reporter.  Every
 * other function that needs the runtime does this by itself; threads start later still, at a stream's first
 * use.  These functions do not need it: all above, simGetDeviceCount, simSetDevice, simGetDevice,
 * simGetDeviceProperties, simDeviceGetStreamPriorityRange, simDeviceCanAccessPeer, simPointerGetAttributes,
 * simRuntimeGetState, simSetTeam and versions. */
SIM_API simError_t simInit(void);
SIM_API simError_t simRuntimeGetState(simRuntimeState* state);
SIM_API simError_t simRuntimeGetVersion(int* version); /* SIM_VERSION of the library */

/* Fork: before the runtime has started, a child can do everything.  Afterwards, every function that needs the
 * runtime returns simErrorBadFork in the child, at once; the functions listed at simInit() work.
 *
 * Exit: exit() waits for the commands that are running (at most a second), and drops what is queued behind
 * them. */

/* --- The program's own helpers -------------------------------------------------------------------------- */

/* What runs on a stream's worker may have threads of its own that help it, a team of OpenMP's for example.  Two sets
 * of helpers, the library's and those, would compete for the processors, so the library can be told of them.
 * Either function may be null.  None may throw or call this library. */
typedef struct simTeam {
  /* Runs body(data) on the calling thread and at the same time on the other threads of its team, and returns 1
   * when all have returned; returns 0 at once if it has no team now. */
  int (*run)(void (*body)(void* data), void* data);
  /* Called on a thread that is about to sleep, a worker without commands or a thread that waits for a stream or
   * an event: what its team holds can be given back.  Returns the nanoseconds after which it wants to be called again
   * if the thread still sleeps, 0 for not again.  Work that comes meanwhile waits for it. */
  uint64_t (*release)(void);
} simTeam;
/* Replaces the functions of the process, of which there are none in the beginning.  Needs no runtime. */
SIM_API simError_t simSetTeam(const simTeam* team);

/* --- Devices -------------------------------------------------------------------------------------------- */

typedef struct simDeviceProp {
  char name[64];
  unsigned char uuid[16]; /* the same in every process */
  int major, minor; /* compute capability */
  size_t totalGlobalMem; /* bytes */
  int multiProcessorCount; /* compute threads */
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int warpSize;
  int asyncEngineCount;
  int concurrentKernels;
} simDeviceProp;

SIM_API simError_t simGetDeviceCount(int* count);
/* The device that the calling thread uses for what names none: simMalloc, simStreamCreate, the null stream,
 * ...  0 at the start of every thread. */
SIM_API simError_t simSetDevice(int device);
SIM_API simError_t simGetDevice(int* device);
SIM_API simError_t simGetDeviceProperties(simDeviceProp* properties, int device);
/* Waits until all streams of the current device are idle, then returns the first error any of them has. */
SIM_API simError_t simDeviceSynchronize(void);
/* Smaller numbers are more urgent: least = 0, greatest < 0. */
SIM_API simError_t simDeviceGetStreamPriorityRange(int* least, int* greatest);

/* Peer access: lets kernels of the current device use memory of `peer`.  It is off at first; any two
 * different devices can have it.  Copies between devices work with and without. */
SIM_API simError_t simDeviceCanAccessPeer(int* canAccess, int device, int peer);
SIM_API simError_t simDeviceEnablePeerAccess(int peer, unsigned flags); /* flags: 0 */
SIM_API simError_t simDeviceDisablePeerAccess(int peer);

/* --- Memory --------------------------------------------------------------------------------------------- */

/* Device memory cannot be read or written by the host.  A device pointer lies in its device's *window*,
 * address space in which every access faults; the fault reporter then names the device and the allocation on
 * stderr, and the process ends as after any invalid access (or runs the SIGSEGV handler that was there
 * before).
 *
 * simMalloc: at least 512-byte aligned, 2 MiB aligned from 1 MiB on.  The contents are undefined.  Sizes from
 * 1 MiB on are rounded up to 2 MiB, smaller ones to 512 bytes.  0 bytes give a null pointer.
 * simErrorMemoryAllocation leaves *pointer untouched. */
SIM_API simError_t simMalloc(void** pointer, size_t bytes);
/* Waits for the work, on all streams that could use the memory, that was queued before the call.  A null
 * pointer is ignored; anything else that is not the start of a live allocation is simErrorInvalidValue.
 * Works for memory of any device.  Errors of device code are not reported here. */
SIM_API simError_t simFree(void* pointer);
/* Page-locked host memory, at least 4096-byte aligned: ordinary memory to the host, and copies need no
 * staging. */
SIM_API simError_t simMallocHost(void** pointer, size_t bytes);
/* Waits as simFree does, for the streams of all devices. */
SIM_API simError_t simFreeHost(void* pointer);
/* Of the current device; total is SIMDEV_MEMORY_LIMIT. */
SIM_API simError_t simMemGetInfo(size_t* freeBytes, size_t* totalBytes);

typedef enum simMemoryType SIM_ANY_INT {
  simMemoryTypeUnregistered = 0, /* ordinary (pageable) host memory, or no memory at all */
  simMemoryTypeHost = 1, /* simMallocHost */
  simMemoryTypeDevice = 2 /* simMalloc */
} simMemoryType;

typedef struct simPointerAttributes {
  simMemoryType type;
  int device; /* -1 for host memory */
  void* base; /* start of the allocation; null when unregistered */
  size_t size; /* bytes asked for at its allocation */
} simPointerAttributes;

/* Succeeds for every pointer; one into freed or never allocated device memory is
 * simMemoryTypeUnregistered. */
SIM_API simError_t simPointerGetAttributes(simPointerAttributes* attributes, const void* pointer);

/* --- Streams -------------------------------------------------------------------------------------------- */

/* An in-order queue of work with its own worker thread.  Different streams run concurrently.  A null
 * simStream_t means the current device's default stream, which is a stream like any other: it waits for
 * nobody and nobody waits for it. The queue is bounded (about a thousand commands); a call that finds it full
 * waits for room. */
typedef struct simStream_st* simStream_t;
typedef struct simEvent_st* simEvent_t;
typedef struct simGraph_st* simGraph_t;
typedef struct simGraphExec_st* simGraphExec_t;

enum {
  simStreamDefault = 0,
  simStreamNonBlocking = 1
}; /* accepted alike: no stream blocks on the default stream */

SIM_API simError_t simStreamCreate(simStream_t* stream);
SIM_API simError_t simStreamCreateWithFlags(simStream_t* stream, unsigned flags);
/* The priority is clamped to the range.  Compute threads serve the more urgent streams' launches first. */
SIM_API simError_t simStreamCreateWithPriority(simStream_t* stream, unsigned flags, int priority);
/* Returns at once; queued work is still done.  A device's default stream is not to be destroyed. */
SIM_API simError_t simStreamDestroy(simStream_t stream);
/* The handle of a device's default stream, the same at every call. */
SIM_API simError_t simDeviceGetDefaultStream(simStream_t* stream, int device);
SIM_API simError_t simStreamGetDevice(simStream_t stream, int* device);
SIM_API simError_t simStreamGetPriority(simStream_t stream, int* priority);
SIM_API simError_t simStreamGetFlags(simStream_t stream, unsigned* flags);
/* simSuccess when idle, else simErrorNotReady. */
SIM_API simError_t simStreamQuery(simStream_t stream);
/* Waits for the work queued before the call. */
SIM_API simError_t simStreamSynchronize(simStream_t stream);
/* Work queued on the stream from now on waits for what the event's latest record stands for at this moment; a
 * later record of the event changes nothing.  An event never recorded is complete.  flags: 0.  The event may
 * be of another device. */
SIM_API simError_t simStreamWaitEvent(simStream_t stream, simEvent_t event, unsigned flags);

/* --- Events --------------------------------------------------------------------------------------------- */

enum {
  simEventDefault = 0,
  simEventBlockingSync = 1,
  simEventDisableTiming = 2
}; /* BlockingSync: waits never spin */

SIM_API simError_t simEventCreate(simEvent_t* event); /* of the current device, with timing */
SIM_API simError_t simEventCreateWithFlags(simEvent_t* event, unsigned flags);
/* May be destroyed while recorded work or waiting streams are pending; they are not affected. */
SIM_API simError_t simEventDestroy(simEvent_t event);
/* The stream must be of the event's device, else simErrorInvalidResourceHandle. */
SIM_API simError_t simEventRecord(simEvent_t event, simStream_t stream);
SIM_API simError_t simEventQuery(simEvent_t event);
SIM_API simError_t simEventSynchronize(simEvent_t event);
/* Milliseconds by the device's monotonic clock.  simErrorInvalidResourceHandle if one of them was never
 * recorded, has no timing, or they are of different devices; simErrorNotReady if one is not complete. */
SIM_API simError_t simEventElapsedTime(float* milliseconds, simEvent_t start, simEvent_t end);
/* The device's clock when the event happened, in nanoseconds (CLOCK_MONOTONIC).  Errors as
 * simEventElapsedTime. */
SIM_API simError_t simEventGetTimestamp(uint64_t* nanoseconds, simEvent_t event);

/* --- Copies --------------------------------------------------------------------------------------------- */

typedef enum simMemcpyKind SIM_ANY_INT {
  simMemcpyHostToHost = 0,
  simMemcpyHostToDevice = 1,
  simMemcpyDeviceToHost = 2,
  simMemcpyDeviceToDevice = 3, /* the devices may differ */
  simMemcpyDefault = 4 /* by what the pointers are */
} simMemcpyKind;

/* The forms without Async use the current device's default stream and return when the copy is done.  For the
 * Async forms, pinned and device memory is used when the stream gets there.  Pageable host memory is
 * different: a source has been read when the call returns, and a destination has been written (the call waits
 * for the stream).  While capturing, pageable memory is treated as pinned: the graph's replays read and write
 * it.
 *
 * Device ranges must lie in one allocation (simErrorIllegalAddress if not).  0 bytes are nothing to do,
 * whatever the pointers. The ranges of a copy must not overlap. */
SIM_API simError_t simMemcpy(void* dst, const void* src, size_t bytes, simMemcpyKind kind);
SIM_API simError_t
simMemcpyAsync(void* dst, const void* src, size_t bytes, simMemcpyKind kind, simStream_t stream);
/* `height` rows of `width` bytes, the rows of dst and src being dstPitch and srcPitch bytes apart (pitch >=
 * width). */
SIM_API simError_t simMemcpy2D(
    void* dst,
    size_t dstPitch,
    const void* src,
    size_t srcPitch,
    size_t width,
    size_t height,
    simMemcpyKind kind);
SIM_API simError_t simMemcpy2DAsync(
    void* dst,
    size_t dstPitch,
    const void* src,
    size_t srcPitch,
    size_t width,
    size_t height,
    simMemcpyKind kind,
    simStream_t stream);
/* Between two devices (or within one); the pointers must be of the devices named. */
SIM_API simError_t simMemcpyPeer(void* dst, int dstDevice, const void* src, int srcDevice, size_t bytes);
SIM_API simError_t simMemcpyPeerAsync(
    void* dst,
    int dstDevice,
    const void* src,
    int srcDevice,
    size_t bytes,
    simStream_t stream);

/* Sets bytes of device or pinned memory to the low byte of `value`. */
SIM_API simError_t simMemset(void* dst, int value, size_t bytes);
SIM_API simError_t simMemsetAsync(void* dst, int value, size_t bytes, simStream_t stream);
SIM_API simError_t simMemset2D(void* dst, size_t pitch, int value, size_t width, size_t height);
SIM_API simError_t
simMemset2DAsync(void* dst, size_t pitch, int value, size_t width, size_t height, simStream_t stream);

/* --- Launch --------------------------------------------------------------------------------------------- */

typedef struct simDim3 {
  uint32_t x, y, z;
} simDim3;

typedef struct simLaunchConfig {
  simDim3 gridDim; /* blocks: 1 to 2^31-1 by 1 to 65535 by 1 to 65535, fewer than 2^32 in all */
  simDim3 blockDim; /* 1 to 1024 in all; for the kernel to interpret */
  simStream_t stream;
  const char* name; /* for error messages and graph dumps; static lifetime; null means "kernel" */
} simLaunchConfig;

/* What one block of a grid sees. */
typedef struct simKernelContext {
  simDim3 blockIdx;
  simDim3 gridDim;
  simDim3 blockDim;
  int device;
  ptrdiff_t memoryOffset; /* from a pointer into this device's memory to where its kernels find it */
  simStream_t stream; /* for a graph, the stream it was launched into */
} simKernelContext;

/* A kernel is a C function that is called once per block.  The blocks of a launch are spread over the
 * device's compute threads, in no order; a block must not wait for another.  `args` are the launch's argument
 * bytes, 16-byte aligned. */
typedef void (*simKernel_t)(const simKernelContext* context, const void* args);

enum { simMaxKernelArgBytes = 65536 };

/* Queues a kernel; `args` are copied before the call returns. */
SIM_API simError_t
simLaunchKernel(const simLaunchConfig* config, simKernel_t kernel, const void* args, size_t argBytes);

/* In device code: where to find the memory behind a device pointer. simLocalPointer is for memory of the
 * kernel's own device, and free.  Given another device's pointer it yields an address that faults. */
static inline void* simLocalPointer(const simKernelContext* context, const void* devicePointer) {
  return (void*)((uintptr_t)devicePointer + (uintptr_t)context->memoryOffset);
}
/* Translates memory of the device and of peers it has access to; null for everything else.  Starts
 * nothing. */
SIM_API void* simTranslatePointer(int device, const void* devicePointer);
/* The constant behind simLocalPointer, and the address space that the device's pointers lie in. */
SIM_API simError_t simDeviceGetMemoryOffset(ptrdiff_t* offset, int device);
SIM_API simError_t simDeviceGetMemoryWindow(void** base, size_t* bytes, int device);

/* In device code: reports that the running kernel, task or host function has failed.  The message is copied,
 * the first one of a launch counts.  Does not stop the caller: return after it.  Ignored elsewhere. */
SIM_API void simKernelFail(const char* message);

/* Queues `function(data)` in stream order, on the stream's worker. */
typedef void (*simHostFn_t)(void* data);
SIM_API simError_t simLaunchHostFunc(simStream_t stream, simHostFn_t function, void* data);

/* Queues a closure: run(data) in stream order as device code, then destroy(data) once, before the stream
 * counts as having done it.  In a graph, run() is called at every replay and destroy() when the last graph
 * that holds it goes.  If the call fails, destroy() has been called too: data is the stream's in any case.
 * `name` has static lifetime. */
typedef void (*simTaskFn_t)(void* data);
SIM_API simError_t
simLaunchTask(simStream_t stream, const char* name, simTaskFn_t run, simTaskFn_t destroy, void* data);

/* --- Graphs --------------------------------------------------------------------------------------------- */

/* Between simStreamBeginCapture and simStreamEndCapture, work given to the stream does not run: it becomes a
 * graph's nodes. Recording an event on a capturing stream and making another stream wait for it draws that
 * stream (of any device) into the capture; it has to be joined by an event in the other direction before the
 * end.
 *
 * Not permitted for a capturing stream, and spoiling its capture: simStreamQuery, simStreamSynchronize,
 * simDeviceSynchronize of its device, and simEventQuery, simEventSynchronize (simErrorCapturedEvent) of an
 * event recorded in it.  Waiting for an event recorded outside of the capture is
 * simErrorStreamCaptureIsolation.
 *
 * Modes: Global refuses simMalloc, simFree, simMallocHost, simFreeHost and the copies without Async in all
 * threads while the capture is on; ThreadLocal in the thread that began it; Relaxed nowhere.  A refused call
 * spoils the capture. */
typedef enum simStreamCaptureMode SIM_ANY_INT {
  simStreamCaptureModeGlobal = 0,
  simStreamCaptureModeThreadLocal = 1,
  simStreamCaptureModeRelaxed = 2
} simStreamCaptureMode;

typedef enum simStreamCaptureStatus SIM_ANY_INT {
  simStreamCaptureStatusNone = 0,
  simStreamCaptureStatusActive = 1,
  simStreamCaptureStatusInvalidated = 2 /* spoilt; simStreamEndCapture ends it without a graph */
} simStreamCaptureStatus;

SIM_API simError_t simStreamBeginCapture(simStream_t stream, simStreamCaptureMode mode);
/* On failure *graph is null, and the streams that took part are back to normal (except for Unmatched and
 * WrongThread, which change nothing). */
SIM_API simError_t simStreamEndCapture(simStream_t stream, simGraph_t* graph);
SIM_API simError_t simStreamIsCapturing(simStream_t stream, simStreamCaptureStatus* status);
/* Also which capture: all streams that take part in one tell the same number, which is never given out again;
 * 0 if there is none.  Either pointer may be null. */
SIM_API simError_t
simStreamGetCaptureInfo(simStream_t stream, simStreamCaptureStatus* status, unsigned long long* id);

SIM_API simError_t simGraphDestroy(simGraph_t graph);
/* Number of nodes and of dependencies between them; either pointer may be null. */
SIM_API simError_t simGraphGetSize(simGraph_t graph, size_t* nodes, size_t* edges);
/* Writes the graph in DOT format.  flags: 0. */
SIM_API simError_t simGraphDebugDotPrint(simGraph_t graph, const char* path, unsigned flags);
/* The graph may be destroyed while its instances live.  flags: 0. */
SIM_API simError_t simGraphInstantiate(simGraphExec_t* exec, simGraph_t graph, unsigned flags);
/* Queues the whole graph as one piece of work of the stream; branches of the graph run concurrently.  May be
 * called any number of times, also while earlier launches are pending: launches of one instance run one after
 * the other.  A stream that is capturing takes up the graph's nodes instead. */
SIM_API simError_t simGraphLaunch(simGraphExec_t exec, simStream_t stream);
/* Gives the instance the arguments of another graph of the same shape (nodes of the same kinds, same edges);
 * else simErrorGraphExecUpdateFailure and nothing changes.  Launches already queued keep what they had. */
SIM_API simError_t simGraphExecUpdate(simGraphExec_t exec, simGraph_t graph);
/* Launches already queued still run. */
SIM_API simError_t simGraphExecDestroy(simGraphExec_t exec);

#ifdef __cplusplus
}
#endif

#endif /* SIMDEV_H */
