// Python's view of the operator layer: fallback counters and policy.
#include "bindings/bindings.h"

#include "aten/fallback.h"
#include "aten/registration.h"

#include <pybind11/stl.h>

namespace simdev {

void initOperatorBindings(pybind11::module_& module) {
  registerBoxedKernels();
  module.def("_boxed_operators", &boxedOperators);
  module.def("_fallback_counts", &fallbackCounts);
  module.def("_reset_fallback_counts", &resetFallbackCounts);
  module.def("_exchange_fallback_policy", [](int policy) {
    TORCH_CHECK_VALUE(policy >= 0 && policy <= 2, "fallback policy must be 0, 1 or 2, got ", policy);
    return static_cast<int>(exchangeFallbackPolicy(static_cast<FallbackPolicy>(policy)));
  });
}

} // namespace simdev
