// Says what an invalid access to device memory was, before the process ends as it would have anyway.
#pragma once

namespace sim {

// Once, when the runtime starts.
void installFaultReporter() noexcept;

} // namespace sim
