// Loading the operators.
#pragma once

namespace simdev {

// Called once when the extension is loaded, after the static registrations of this directory.
void registerBoxedKernels();

} // namespace simdev
