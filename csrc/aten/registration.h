// Loading the operators.
#pragma once

#include <map>
#include <string>

namespace simdev {

// Called once when the extension is loaded, after the static registrations of this directory.
void registerBoxedKernels();

// The operators that got a boxed kernel, and how it serves them: "launched", "host fallback" or "refused".
const std::map<std::string, const char*>& boxedOperators();

} // namespace simdev
