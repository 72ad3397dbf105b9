// Python bindings of the runtime layer: devices, streams, generators, environment.
//
// A stream crosses as the tuple (stream_id, device_index, device_type) that torch.Stream's constructor takes,
// so that Python can make its own subclass of it.  torch.Event works over the device guard.
#include "bindings/bindings.h"
#include "driver/driver.h"
#include "runtime/delegate.h"
#include "runtime/device.h"
#include "runtime/env.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <thread>
#include <tuple>

namespace py = pybind11;

namespace simdev {

namespace {

using StreamTuple = std::tuple<c10::StreamId, c10::DeviceIndex, int64_t>;

StreamTuple pack(const Stream& stream) {
  return {stream.id(), stream.device_index(), static_cast<int64_t>(kDeviceType)};
}

Stream unpack(const StreamTuple& stream) {
  const auto& [id, device, type] = stream;
  return Stream(c10::Stream::unpack3(id, device, static_cast<c10::DeviceType>(type)));
}

void sleepKernel(const KernelContext& /*context*/, const void* arguments) {
  std::this_thread::sleep_for(*static_cast<const std::chrono::nanoseconds*>(arguments));
}

void sleepOnStream(int64_t nanoseconds, const StreamTuple& stream) {
  const Stream target = unpack(stream);
  const StreamHandle handle = target.handle();
  if (DelegateDriver* delegate = activeDelegate()) {
    delegate->sleep(handle, nanoseconds);
    return;
  }
  const std::chrono::nanoseconds duration(nanoseconds);
  driver().launchKernel(handle, "simdev::sleep", &sleepKernel, /*grid=*/1, &duration, sizeof(duration));
}

const c10::Event& unpackEvent(const py::handle& event) {
  TORCH_CHECK_TYPE(
      THPEvent_Check(event.ptr()), "Expected a torch.Event, but got ", Py_TYPE(event.ptr())->tp_name);
  return reinterpret_cast<THPEvent*>(event.ptr())->event;
}

// Python's integers are wider than a DeviceIndex: 300 is an invalid ordinal, not device 44.
c10::DeviceIndex checked(int64_t device) {
  checkDeviceIndex(device);
  return static_cast<c10::DeviceIndex>(device);
}

DeviceProperties deviceProperties(int64_t device) {
  const c10::DeviceIndex index = resolveDeviceIndex(device);
  lazyInit();
  return driver().deviceProperties(index);
}

std::string describe(const DeviceProperties& properties) {
  return c10::str(
      "_SimdevDeviceProperties(name='",
      properties.name,
      "', major=",
      properties.major,
      ", minor=",
      properties.minor,
      ", total_memory=",
      properties.totalMemory / (1024 * 1024),
      "MB, multi_processor_count=",
      properties.multiProcessorCount,
      ", uuid=",
      properties.uuid,
      ", driver='",
      properties.driver,
      "')");
}

const char* kindName(EnvKind kind) {
  constexpr const char* kNames[] = {"bool", "int", "bytes", "choice", "string"};
  return kNames[static_cast<size_t>(kind)];
}

} // namespace

void initRuntimeBindings(py::module_& m) {
  using torch::wrap_pybind_function;
  using torch::wrap_pybind_function_no_gil;

  // --- Devices -------------------------------------------------------------------------------------------

  m.def("_init", wrap_pybind_function_no_gil([] { lazyInit(); }));
  m.def("_is_initialized", &isInitialized);
  m.def("_is_in_bad_fork", &isInBadFork);
  m.def("_is_device_used", &isDeviceUsed);
  m.def("_device_count", wrap_pybind_function([] { return deviceCount(); }));
  m.def("_current_device", &currentDevice);
  m.def("_set_device", wrap_pybind_function([](int64_t device) { setDevice(checked(device)); }));
  m.def("_exchange_device", wrap_pybind_function([](int64_t device) {
          return exchangeDevice(checked(device));
        }));
  m.def("_driver_name", wrap_pybind_function([] { return driver().name(); }));
  m.def("_synchronize", wrap_pybind_function_no_gil([](int64_t device) {
          const c10::DeviceIndex index = resolveDeviceIndex(device);
          lazyInit();
          driver().synchronizeDevice(index);
        }));
  m.def("_can_access_peer", wrap_pybind_function([](int64_t device, int64_t peer) {
          const c10::DeviceIndex index = checked(device);
          const c10::DeviceIndex peerIndex = checked(peer);
          lazyInit();
          return driver().canAccessPeer(index, peerIndex);
        }));

  py::class_<DeviceProperties>(m, "_SimdevDeviceProperties")
      .def_readonly("name", &DeviceProperties::name)
      .def_readonly("driver", &DeviceProperties::driver)
      .def_readonly("uuid", &DeviceProperties::uuid)
      .def_readonly("major", &DeviceProperties::major)
      .def_readonly("minor", &DeviceProperties::minor)
      .def_readonly("multi_processor_count", &DeviceProperties::multiProcessorCount)
      .def_readonly("total_memory", &DeviceProperties::totalMemory)
      .def("__repr__", &describe);
  m.def("_device_properties", wrap_pybind_function(&deviceProperties));

  // --- Streams -------------------------------------------------------------------------------------------

  m.def("_stream_priority_range", wrap_pybind_function(&streamPriorityRange));
  m.def("_current_stream", wrap_pybind_function([](int64_t device) {
          return pack(getCurrentStream(resolveDeviceIndex(device)));
        }));
  m.def("_default_stream", wrap_pybind_function([](int64_t device) {
          return pack(getDefaultStream(resolveDeviceIndex(device)));
        }));
  m.def("_stream_from_pool", wrap_pybind_function([](int64_t device, int priority) {
          return pack(getStreamFromPool(priority, resolveDeviceIndex(device)));
        }));
  m.def("_stream_from_external", wrap_pybind_function([](uintptr_t handle, int64_t device) {
          const c10::DeviceIndex index = resolveDeviceIndex(device);
          return pack(getStreamFromExternal(reinterpret_cast<StreamHandle>(handle), index));
        }));
  m.def("_stream_handle", wrap_pybind_function([](const StreamTuple& stream) {
          return reinterpret_cast<uintptr_t>(unpack(stream).nativeHandle());
        }));
  m.def("_stream_priority", wrap_pybind_function([](const StreamTuple& stream) {
          return unpack(stream).priority();
        }));
  // Also makes the stream's device current, as torch.cuda.set_stream does.
  m.def("_set_stream", wrap_pybind_function([](const StreamTuple& stream) {
          const Stream unpacked = unpack(stream);
          setDevice(unpacked.device_index());
          setCurrentStream(unpacked);
        }));
  // torch.Event.elapsed_time() itself refuses subclasses of torch.Event as its argument.
  m.def("_event_elapsed_time", wrap_pybind_function([](const py::object& start, const py::object& end) {
          return unpackEvent(start).elapsedTime(unpackEvent(end));
        }));
  m.def("_sleep", wrap_pybind_function_no_gil(&sleepOnStream));
  // The current stream's native handle, as compiled code wants it.
  m.def("_current_raw_stream", wrap_pybind_function([](int64_t device) {
          const c10::DeviceIndex index = resolveDeviceIndex(device);
          return reinterpret_cast<uintptr_t>(
              activeDelegate() == nullptr ? currentStreamHandle(index)
                                          : getCurrentStream(index).nativeHandle());
        }));

  // --- Random numbers ------------------------------------------------------------------------------------

  m.def("_default_generator", wrap_pybind_function([](int64_t device) {
          return getDefaultGenerator(resolveDeviceIndex(device));
        }));
  m.def("_manual_seed_all", wrap_pybind_function(&manualSeedAll));

  // --- Environment ---------------------------------------------------------------------------------------

  m.def("_environment", [] {
    py::list rows;
    for (const EnvVariable& row : envTable()) {
      rows.append(py::make_tuple(row.name, kindName(row.kind), row.defaultValue, row.values, row.doc));
    }
    return rows;
  });
}

} // namespace simdev
