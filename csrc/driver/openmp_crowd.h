// Whether the process's threads have to queue for a processor, and what is done about it.
//
// The kernel counts how long each thread was ready to run and did not.  If that is a good part of a thread's time, a further
// thread holds a team as large as the machine that does nothing: libgomp then counts more members than processors and lets
// all that wait sleep at once (openmp_team.h).  When the queue is gone, so is that team; if the queue comes back
// soon, the next one stays for longer, since it may be our own members that fill the machine.
#pragma once

#include <cstdint>

namespace simdev {

class OpenMPCrowd {
 public:
  // To be called often on threads that have teams; looks at the calling thread's queueing now and then.
  static void watch(uint64_t nanosecondsNow) noexcept;

  // Whether members of teams that wait sleep.
  static bool membersSleep() noexcept;
};

} // namespace simdev
