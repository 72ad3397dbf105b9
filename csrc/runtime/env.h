// The environment variables that the PyTorch side reads: one table, one parser for each kind of value.
//
// Lives here: every SIMDEV_* variable read above the driver.  Does not live here: SIMDEV_DRIVER
// (csrc/driver/driver.cpp) and the simulated chip's own variables, which libsimdev parses.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace simdev {

enum class EnvKind : uint8_t {
  Bool, // 0/1, false/true, off/on, no/yes
  Int, // a decimal integer
  Bytes, // a decimal integer with an optional unit K, M, G or T (powers of 1024; "64M", "64MB", "64MiB")
  Choice, // one of `values`
  String,
};

struct EnvVariable {
  const char* name;
  EnvKind kind;
  const char* defaultValue; // in the form a user would write
  const char* values; // Choice: the values, separated by '|'; otherwise empty
  const char* doc; // one sentence
};

std::span<const EnvVariable> envTable() noexcept;

// The value of a variable of the table, read anew at each call, or its default where it is unset or empty.  A
// malformed value throws a ValueError that names the variable, the value and what is accepted; so does (as an
// internal error) a name that is not in the table or is of another kind.
bool envBool(std::string_view name);
int64_t envInt(std::string_view name);
uint64_t envBytes(std::string_view name);
size_t envChoice(std::string_view name); // index into `values`
std::string envString(std::string_view name);

// The parser behind envBytes, for sizes inside a larger setting.  `what` names the setting in the error.
uint64_t parseBytes(std::string_view text, std::string_view what);

} // namespace simdev
