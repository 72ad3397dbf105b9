// Python bindings of graph capture.  The public classes are torch_simdev/graphs.py.
#include "runtime/graph.h"
#include "bindings/bindings.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace py = pybind11;

namespace simdev {

namespace {

using AnyGraph = compat::GraphImplInterface;
using compat::GraphCaptureMode;

void captureBegin(AnyGraph& graph, std::optional<c10::MempoolId_t> pool, const std::string& mode) {
  constexpr std::pair<std::string_view, GraphCaptureMode> kModes[] = {
      {"global", GraphCaptureMode::Global},
      {"thread_local", GraphCaptureMode::ThreadLocal},
      {"relaxed", GraphCaptureMode::Relaxed}};
  const auto* const found = std::ranges::find(
      kModes, std::string_view(mode), &std::pair<std::string_view, GraphCaptureMode>::first);
  TORCH_CHECK(
      found != std::end(kModes),
      "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ",
      mode);
  const py::gil_scoped_release release;
  graph.capture_begin(pool.value_or(c10::MempoolId_t{0, 0}), found->second);
}

} // namespace

void initGraphBindings(py::module_& m) {
  using torch::wrap_pybind_function;
  using torch::wrap_pybind_function_no_gil;

  py::class_<AnyGraph, std::shared_ptr<AnyGraph>>(m, "_Graph")
      .def(py::init([](bool keepGraph) { return std::shared_ptr<AnyGraph>(createGraph(keepGraph)); }))
      .def("capture_begin", wrap_pybind_function(&captureBegin))
      .def("capture_end", wrap_pybind_function_no_gil(&AnyGraph::capture_end))
      .def("instantiate", wrap_pybind_function_no_gil(&AnyGraph::instantiate))
      .def("replay", wrap_pybind_function_no_gil(&AnyGraph::replay))
      .def("reset", wrap_pybind_function_no_gil(&AnyGraph::reset))
      .def("pool", wrap_pybind_function_no_gil(&AnyGraph::pool))
      .def("enable_debug_mode", wrap_pybind_function_no_gil(&AnyGraph::enable_debug_mode))
      .def("debug_dump", wrap_pybind_function_no_gil(&AnyGraph::debug_dump));
  m.def("_new_pool_id", &newPoolId);
  m.def("_register_graphs", wrap_pybind_function(&registerGraphs));
  m.def("_is_stream_capturing", wrap_pybind_function([](int64_t device) {
          return getCurrentStream(resolveDeviceIndex(device)).isCapturing();
        }));
}

} // namespace simdev
