// The harness of libsimdev's tests: every TEST runs in a process of its own, so that each starts an uninitialised
// runtime, may set its own environment, and may die.
#pragma once

#include "simdev.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace test {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "  %s:%d: %s (%s)\n", file, line, what.c_str(), simGetLastErrorDetail());
  std::fflush(nullptr);
  _exit(1);
}

struct Death {
  int status; // as waitpid gives it
  std::string output; // of stderr
};

// Runs `body` in a child process and returns how it ended.
inline Death inChild(const std::function<void()>& body) {
  int pipes[2];
  if (pipe(pipes) != 0) {
    fail(__FILE__, __LINE__, "pipe");
  }
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipes[1], STDERR_FILENO);
    close(pipes[0]);
    close(pipes[1]);
    body();
    std::exit(0);
  }
  close(pipes[1]);
  Death death{};
  char buffer[512];
  for (ssize_t n = 0; (n = read(pipes[0], buffer, sizeof(buffer))) > 0;) {
    death.output.append(buffer, static_cast<size_t>(n));
  }
  close(pipes[0]);
  waitpid(child, &death.status, 0);
  return death;
}

inline int main(const char* suite) {
  int failed = 0;
  for (const Case& one : cases()) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      alarm(300); // a hang is a failure
      one.run();
      std::exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      std::printf("FAILED %s.%s (wait status %d)\n", suite, one.name, status);
      ++failed;
    }
  }
  std::printf("%s: %zu passed, %d failed\n", suite, cases().size() - static_cast<size_t>(failed), failed);
  return failed == 0 ? 0 : 1;
}

} // namespace test

#define TEST(name)                                              \
  static void name();                                           \
  static const test::Register name##Registration(#name, &name); \
  static void name()

#define CHECK(condition)                                          \
  do {                                                            \
    if (!(condition)) test::fail(__FILE__, __LINE__, #condition); \
  } while (0)

// A call that must return a certain error.
#define EXPECT(error, call)                                                                                  \
  do {                                                                                                       \
    const simError_t got = (call);                                                                           \
    if (got != (error))                                                                                      \
      test::fail(__FILE__, __LINE__, std::string(#call " gives ") + simGetErrorName(got) + ", not " #error); \
  } while (0)

#define OK(call) EXPECT(simSuccess, call)
