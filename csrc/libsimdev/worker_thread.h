// Starting threads of the library's own, and of its driver's.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace sim {

// Starts a detached thread.  Its name shows up in debuggers and in top -H.  It takes no signals but those
// that its own code causes, so that Ctrl-C and timers reach the application's threads.  Throws
// std::system_error.
template <class Main>
void startThread(const char* name, Main&& main) {
  sigset_t blocked, previous;
  sigfillset(&blocked);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&blocked, signal);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, &previous); // a thread inherits the mask of the one that starts it
  try {
    std::thread thread(std::forward<Main>(main));
    pthread_setname_np(thread.native_handle(), name);
    thread.detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

} // namespace sim
