// Loading the operators.
#pragma once

#include <map>
#include <string>

namespace simdev {

// After the static registrations of this directory: Python calls it when it loads the extension, and a program without
// Python at the first use of the device.  A second call does nothing.
void registerBoxedKernels();

// The operators that got a boxed kernel, and how it serves them: "launched", "host fallback" or "refused".
const std::map<std::string, const char*>& boxedOperators();

} // namespace simdev
