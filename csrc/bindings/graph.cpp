// Python bindings of graph capture.  The public classes are torch_simdev/graphs.py; what compiled functions need beyond them is
// used by torch_simdev/compile/graph.py.
#include "runtime/graph.h"
#include "bindings/bindings.h"
#include "runtime/graph_outputs.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// The addresses of those inputs that a recorded graph reads in their places.
class FixedInputs {
 public:
  FixedInputs(std::vector<size_t> indices, std::vector<uintptr_t> addresses)
      : indices_(std::move(indices)), addresses_(std::move(addresses)) {}

  bool match(const py::list& inputs) const {
    for (size_t i = 0; i < indices_.size(); ++i) {
      const at::Tensor& tensor = THPVariable_Unpack(PyList_GET_ITEM(inputs.ptr(), indices_[i]));
      if (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) != addresses_[i]) {
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<size_t> indices_;
  std::vector<uintptr_t> addresses_;
};

// Into buffers of which autograd is to know nothing, whatever mode the caller is in.
void copyBelowAutograd(const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (size_t i = 0; i < targets.size(); ++i) {
    targets[i].copy_(sources.at(i), /*non_blocking=*/true);
  }
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
  py::class_<FixedInputs>(m, "_FixedInputs")
      .def(py::init<std::vector<size_t>, std::vector<uintptr_t>>())
      .def("match", &FixedInputs::match);
  py::class_<GraphOutputs>(m, "_GraphOutputs")
      .def(py::init<std::vector<at::Tensor>, std::vector<size_t>>())
      .def("held", &GraphOutputs::held)
      .def("wait_for_uses", wrap_pybind_function([](GraphOutputs& outputs, int64_t device) {
             outputs.waitForUses(getCurrentStream(resolveDeviceIndex(device)));
           }))
      .def("take", wrap_pybind_function([](GraphOutputs& outputs, int64_t device) {
             return outputs.take(getCurrentStream(resolveDeviceIndex(device)));
           }))
      .def_static("is_lent", &GraphOutputs::isLent);
  m.def("_copy_below_autograd", wrap_pybind_function_no_gil(&copyBelowAutograd));
  m.def("_new_pool_id", &newPoolId);
  m.def("_register_graphs", wrap_pybind_function(&registerGraphs));
  m.def("_is_stream_capturing", wrap_pybind_function([](int64_t device) {
          return getCurrentStream(resolveDeviceIndex(device)).isCapturing();
        }));
}

} // namespace simdev
