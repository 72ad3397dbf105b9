// Python bindings of the allocators: what PyTorch has no device-generic function for.
//
// empty_cache, memory info and the resets of statistics go through torch.accelerator.  Snapshots are plain
// dictionaries in the format of torch.cuda.memory._snapshot(), which PyTorch's memory viewer reads.
#include "bindings/bindings.h"
#include "compat.h"
#include "runtime/caching_allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace simdev {

namespace {

// --- Stack traces -------------------------------------------------------------------------------------------

// Called by whoever allocates, before the allocator takes a lock.  gather() takes the GIL if this thread has Python frames.
std::shared_ptr<c10::GatheredContext> gatherPython() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
}
std::shared_ptr<c10::GatheredContext> gatherAll() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/true);
}

// Collects the dictionaries that want a list of frames, and fills all in at once: traces share most of theirs.
class FramesLater {
 public:
  void add(py::dict destination, const std::shared_ptr<c10::GatheredContext>& context) {
    auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (traceback == nullptr) {
      destination["frames"] = py::list();
      return;
    }
    const auto [known, isNew] = indices_.try_emplace(traceback, tracebacks_.size());
    if (isNew) {
      tracebacks_.push_back(traceback);
    }
    destinations_.emplace_back(std::move(destination), known->second);
  }

  void fill() {
    const torch::SymbolizedTracebacks symbolized = torch::symbolize(tracebacks_);
    std::vector<py::dict> frames;
    for (const auto& frame : symbolized.all_frames) {
      py::dict& converted = frames.emplace_back();
      converted["name"] = frame.funcname;
      converted["filename"] = frame.filename;
      converted["line"] = frame.lineno;
    }
    std::vector<py::list> stacks(symbolized.tracebacks.size());
    for (size_t i = 0; i < stacks.size(); ++i) {
      for (const uint64_t frame : symbolized.tracebacks[i]) {
        stacks[i].append(frames.at(frame));
      }
    }
    for (auto& [destination, stack] : destinations_) {
      destination["frames"] = stacks.at(stack);
    }
  }

 private:
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::unordered_map<torch::CapturedTraceback*, size_t> indices_;
  std::vector<std::pair<py::dict, size_t>> destinations_;
};

// --- Snapshots and history ------------------------------------------------------------------------------------

int64_t asInteger(StreamHandle stream) {
  return reinterpret_cast<int64_t>(stream);
}

py::dict segmentToDict(const SnapshotSegment& segment, FramesLater& frames) {
  py::dict result;
  result["device"] = segment.device;
  result["address"] = segment.address;
  result["total_size"] = segment.size;
  result["allocated_size"] = segment.allocated;
  result["active_size"] = segment.active;
  result["requested_size"] = segment.requested;
  result["stream"] = asInteger(segment.stream);
  result["segment_type"] = segment.large ? "large" : "small";
  result["segment_pool_id"] = segment.pool;
  result["is_expandable"] = false;
  frames.add(result, nullptr);
  py::list blocks;
  for (const SnapshotBlock& block : segment.blocks) {
    py::dict entry;
    entry["address"] = block.address;
    entry["size"] = block.size;
    entry["requested_size"] = block.requested;
    entry["state"] =
        block.allocated ? "active_allocated" : (block.active ? "active_awaiting_free" : "inactive");
    frames.add(entry, block.context);
    blocks.append(std::move(entry));
  }
  result["blocks"] = std::move(blocks);
  return result;
}

py::dict traceEntryToDict(const TraceEntry& entry, FramesLater& frames) {
  py::dict result;
  result["action"] = kTraceActionNames[static_cast<size_t>(entry.action)];
  result[entry.action == TraceAction::Oom ? "device_free" : "addr"] = entry.address;
  result["size"] = entry.size;
  result["stream"] = asInteger(entry.stream);
  result["time_us"] = entry.timeUs;
  result["pool_id"] = entry.pool;
  frames.add(result, entry.context);
  return result;
}

py::dict settingsToDict() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  py::dict result;
  result["PYTORCH_ALLOC_CONF"] = c10::CachingAllocator::getAllocatorSettings();
  result["max_split_size"] = AcceleratorAllocatorConfig::max_split_size();
  result["garbage_collection_threshold"] = AcceleratorAllocatorConfig::garbage_collection_threshold();
  result["expandable_segments"] = false;
  return result;
}

py::dict memorySnapshot(std::optional<c10::MempoolId_t> pool, bool includeTraces) {
  MemorySnapshot snapshot;
  {
    py::gil_scoped_release noGil;
    snapshot = allocator().snapshot(pool, includeTraces);
  }
  FramesLater frames;
  py::list segments;
  for (const SnapshotSegment& segment : snapshot.segments) {
    segments.append(segmentToDict(segment, frames));
  }
  py::list traces;
  for (const std::vector<TraceEntry>& entries : snapshot.traces) {
    py::list trace;
    for (const TraceEntry& entry : entries) {
      trace.append(traceEntryToDict(entry, frames));
    }
    traces.append(std::move(trace));
  }
  frames.fill();
  py::dict result;
  result["segments"] = std::move(segments);
  result["device_traces"] = std::move(traces);
  result["allocator_settings"] = settingsToDict();
  result["external_annotations"] = py::list();
  return result;
}

template <size_t kCount>
size_t choice(const char* what, const std::string& value, const char* const (&names)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    if (value == names[i]) {
      return i;
    }
  }
  std::string expected;
  for (const char* name : names) {
    expected += expected.empty() ? name : std::string(", ") + name;
  }
  TORCH_CHECK_VALUE(false, what, " must be one of ", expected, " but got '", value, "'");
}

void recordMemoryHistory(
    const std::optional<std::string>& enabled,
    const std::optional<std::string>& context,
    const std::string& stacks,
    size_t maxEntries,
    bool clear,
    const std::vector<std::string>& skippedActions) {
  HistorySettings settings;
  settings.enabled = enabled.has_value();
  if (settings.enabled) {
    settings.maxEntries = choice("enabled", *enabled, {"state", "all"}) == 1 ? maxEntries : 0;
  }
  if (context.has_value()) {
    settings.contextWhen =
        static_cast<HistorySettings::Context>(1 + choice("context", *context, {"state", "alloc", "all"}));
  }
  const bool cpp = choice("stacks", stacks, {"python", "all"}) == 1;
  for (const std::string& action : skippedActions) {
    settings.skippedActions |= 1U << choice("skip_actions", action, kTraceActionNames);
  }
  if (settings.contextWhen != HistorySettings::Context::Never) {
    settings.gather = cpp ? &gatherAll : &gatherPython;
    if (settings.enabled && cpp) {
      torch::unwind::unwind(); // reads the unwind tables of all libraries, once
    }
  }
  py::gil_scoped_release noGil;
  allocator().recordHistory(settings, clear);
}

py::object allocationTraceback(uintptr_t pointer) {
  const auto context = allocator().contextForPointer(reinterpret_cast<const void*>(pointer));
  if (context == nullptr) {
    return py::none();
  }
  py::dict holder;
  FramesLater frames;
  frames.add(holder, context);
  frames.fill();
  return holder["frames"];
}

// --- Statistics ---------------------------------------------------------------------------------------------

py::dict statToDict(const c10::CachingAllocator::Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

py::dict statsToDict(const c10::CachingAllocator::StatArray& stats) {
  constexpr const char* kNames[] = {"all", "small_pool", "large_pool"};
  py::dict result;
  for (size_t i = 0; i < stats.size(); ++i) {
    result[kNames[i]] = statToDict(stats[i]);
  }
  return result;
}

// torch._C._accelerator_getDeviceStats gives all of it but num_oom_rejections and the private pools.
py::dict memoryStats(c10::DeviceIndex device) {
  lazyInit();
  const auto stats = c10::getDeviceAllocator(kDeviceType)->getDeviceStats(device);
  py::dict result;
  result["allocation"] = statsToDict(stats.allocation);
  result["segment"] = statsToDict(stats.segment);
  result["active"] = statsToDict(stats.active);
  result["inactive_split"] = statsToDict(stats.inactive_split);
  result["allocated_bytes"] = statsToDict(stats.allocated_bytes);
  result["reserved_bytes"] = statsToDict(stats.reserved_bytes);
  result["active_bytes"] = statsToDict(stats.active_bytes);
  result["inactive_split_bytes"] = statsToDict(stats.inactive_split_bytes);
  result["requested_bytes"] = statsToDict(stats.requested_bytes);
  result["oversize_allocations"] = statToDict(stats.oversize_allocations);
  result["oversize_segments"] = statToDict(stats.oversize_segments);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_oom_rejections"] = 0; // of a policy of CUDA's allocator that this one does not have
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["max_split_size"] = stats.max_split_size;
  py::dict privatePools;
  compat::forEachPrivatePoolReserved(stats, [&](const auto& pool, const auto& reserved) {
    privatePools[py::cast(pool)] = statsToDict(reserved);
  });
  result["reserved_bytes_by_private_pools"] = std::move(privatePools);
  return result;
}

// --- Host memory ------------------------------------------------------------------------------------------------

py::dict durationToDict(const c10::CachingAllocator::DurationStat& stat) {
  py::dict result;
  result["total"] = stat.total;
  result["max"] = stat.max;
  result["min"] = stat.min;
  result["count"] = stat.count;
  result["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return result;
}

at::HostAllocator& hostAllocator() {
  return *at::getHostAllocator(kDeviceType);
}

py::dict hostMemoryStats() {
  const at::HostStats stats = hostAllocator().get_stats();
  py::dict result;
  result["allocations"] = statToDict(stats.allocations);
  result["allocated_bytes"] = statToDict(stats.allocated_bytes);
  result["active_requests"] = statToDict(stats.active_requests);
  result["active_bytes"] = statToDict(stats.active_bytes);
  result["host_alloc_time"] = durationToDict(stats.host_alloc_time);
  result["host_free_time"] = durationToDict(stats.host_free_time);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

// --- Private pools ------------------------------------------------------------------------------------------------

void beginAllocateCurrentThreadToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  allocator().beginAllocateToPool(device, pool, [thread = std::this_thread::get_id()](StreamHandle) {
    return std::this_thread::get_id() == thread;
  });
}

// The observer's exception is reported and does not replace the OutOfMemoryError.
void attachObserver(py::function observer) {
  // Never destroyed: the allocator keeps it until the process ends, when there is no interpreter to give it back to.
  auto* held = new py::function(std::move(observer));
  attachOutOfMemoryObserver([held](c10::DeviceIndex device, size_t wanted, size_t total, size_t free) {
    py::gil_scoped_acquire gil;
    try {
      (*held)(device, wanted, total, free);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("simdev out-of-memory observer");
    }
  });
}

} // namespace

void initMemoryBindings(py::module_& m) {
  using torch::wrap_pybind_function;
  using torch::wrap_pybind_function_no_gil;

  m.def("_raw_alloc", wrap_pybind_function_no_gil([](size_t size, c10::DeviceIndex device, uintptr_t stream) {
          void* pointer = allocator().rawAllocate(size, device, reinterpret_cast<StreamHandle>(stream));
          return reinterpret_cast<uintptr_t>(pointer);
        }));
  m.def("_raw_delete", wrap_pybind_function_no_gil([](uintptr_t pointer) {
          allocator().rawDelete(reinterpret_cast<void*>(pointer));
        }));
  m.def("_set_memory_fraction", wrap_pybind_function_no_gil([](double fraction, c10::DeviceIndex device) {
          allocator().setMemoryFraction(fraction, device);
        }));
  m.def("_get_memory_fraction", wrap_pybind_function_no_gil([](c10::DeviceIndex device) {
          return allocator().getMemoryFraction(device);
        }));

  m.def("_memory_stats", wrap_pybind_function(&memoryStats));
  m.def("_memory_snapshot", wrap_pybind_function(&memorySnapshot));
  m.def("_record_memory_history", wrap_pybind_function(&recordMemoryHistory));
  m.def("_allocation_traceback", wrap_pybind_function(&allocationTraceback));
  m.def("_attach_out_of_memory_observer", wrap_pybind_function(&attachObserver));

  m.def("_host_memory_stats", wrap_pybind_function(&hostMemoryStats));
  m.def("_reset_accumulated_host_memory_stats", wrap_pybind_function_no_gil([] {
          hostAllocator().reset_accumulated_stats();
        }));
  m.def("_reset_peak_host_memory_stats", wrap_pybind_function_no_gil([] {
          hostAllocator().reset_peak_stats();
        }));

  m.def("_retain_pool", wrap_pybind_function_no_gil([](c10::DeviceIndex device, c10::MempoolId_t pool) {
          allocator().retainPool(device, pool);
        }));
  m.def("_release_pool", wrap_pybind_function_no_gil([](c10::DeviceIndex device, c10::MempoolId_t pool) {
          allocator().releasePool(device, pool);
        }));
  m.def("_pool_use_count", wrap_pybind_function_no_gil([](c10::DeviceIndex device, c10::MempoolId_t pool) {
          return allocator().getPoolUseCount(device, pool);
        }));
  m.def(
      "_begin_allocate_current_thread_to_pool",
      wrap_pybind_function_no_gil(&beginAllocateCurrentThreadToPool));
  m.def(
      "_end_allocate_to_pool",
      wrap_pybind_function_no_gil([](c10::DeviceIndex device, c10::MempoolId_t pool) {
        allocator().endAllocateToPool(device, pool);
      }));
}

} // namespace simdev
