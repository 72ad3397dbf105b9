// The OpenMP threads behind a thread that runs ATen's kernels for the CPU: a worker of the simulator, and every host
// thread that has run a CPU operator in parallel.
//
// Each such thread is the master of a team of its own, which stays for good.  Members that have nothing to do wait on a
// processor for some milliseconds; but libgomp counts the members of all teams, and from more of them than processors on
// they go to sleep at once.  Which is better depends on the machine:
//
// - Where processors are free, waking members costs every parallel region 15 to 60 us, on the device and on the CPU
//   alike.  With as many threads as processors in each team, two teams are enough for that, and one of them is usually
//   idle: the host waits for the device, or the device for the host.  So a thread gives its team back before it sleeps.  At
//   its next parallel region it gets a new one.
// - Where they are not, members that wait on one keep from it whoever they wait for.  A convolution of a millisecond
//   takes ten.  So while threads are seen to queue for a processor, openmp_crowd.h makes all members sleep.
//
// The chip's own compute threads would have to share a processor with a member that waits there, and so a launch of many
// blocks is the team's while a worker has one.
#pragma once

#include <cstdint>

namespace simdev {

// How many threads the calling thread's next parallel regions have.  (at::set_num_threads() is for the whole process.)
void setTeamSize(int threads);

// Ends the calling thread's team.  Returns the nanoseconds after which a thread that still sleeps is to call again, or 0:
// a new team costs some 30 us per thread, so a thread that sleeps often keeps its team for a while.
uint64_t releaseTeam() noexcept;

// Runs body(data) on every thread of the calling thread's team and returns 1; returns 0 if setTeamSize() has not asked for
// more than one thread since the last team was given back, or if the team's members sleep.
int runOnTeam(void (*body)(void* data), void* data) noexcept;

} // namespace simdev
