// Loading the operators.
#pragma once

#include <map>
#include <string>

namespace simdev {

// Called once when the extension is loaded, after the static registrations of this directory.
void registerBoxedKernels();

// The operators that got a boxed kernel: true for those that always run on the host.
const std::map<std::string, bool>& boxedOperators();

} // namespace simdev
