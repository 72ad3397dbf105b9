// The table of environment variables, and the parsers.
#include "runtime/env.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>

namespace simdev {

namespace {

constexpr EnvVariable kVariables[] = {
    {"SIMDEV_FALLBACK",
     EnvKind::Choice,
     "allow",
     "allow|warn|error",
     "What an operator without a device implementation does: run on the host and be counted, warn as well, "
     "or raise."},
    {"SIMDEV_ALLOC_CONF",
     EnvKind::String,
     "",
     "",
     "Settings of the caching allocator, 'key:value' separated by commas, as PYTORCH_CUDA_ALLOC_CONF."},
    {"SIMDEV_MEMORY_SANITIZER",
     EnvKind::Bool,
     "0",
     "",
     "Fill device memory with a pattern when it is freed, and check the pattern when it is reused."},
};

constexpr std::string_view kKindNames[] =
    {"0 or 1", "an integer", "a size in bytes such as 512M", "", "a string"};

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

const EnvVariable& find(std::string_view name, EnvKind kind) {
  const auto* variable = std::ranges::find(kVariables, name, &EnvVariable::name);
  TORCH_INTERNAL_ASSERT(
      variable != std::end(kVariables) && variable->kind == kind,
      "no such environment variable in the table: ",
      name);
  return *variable;
}

std::string text(const EnvVariable& variable) {
  const char* value = std::getenv(variable.name);
  return value != nullptr && *value != '\0' ? value : variable.defaultValue;
}

[[noreturn]] void malformed(std::string_view name, std::string_view value, std::string_view expected) {
  TORCH_CHECK_VALUE(false, name, "='", value, "' is malformed: expected ", expected);
}

template <class Number>
bool parseNumber(std::string_view digits, Number& number) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return !digits.empty() && error == std::errc() && end == digits.data() + digits.size();
}

} // namespace

std::span<const EnvVariable> envTable() noexcept {
  return kVariables;
}

bool envBool(std::string_view name) {
  const std::string value = text(find(name, EnvKind::Bool));
  constexpr std::array<std::string_view, 4> kTrue = {"1", "true", "on", "yes"};
  constexpr std::array<std::string_view, 4> kFalse = {"0", "false", "off", "no"};
  const std::string folded = lower(value);
  if (std::ranges::find(kTrue, folded) != kTrue.end()) {
    return true;
  }
  if (std::ranges::find(kFalse, folded) != kFalse.end()) {
    return false;
  }
  malformed(name, value, kKindNames[static_cast<size_t>(EnvKind::Bool)]);
}

int64_t envInt(std::string_view name) {
  const std::string value = text(find(name, EnvKind::Int));
  int64_t number = 0;
  if (!parseNumber(value, number)) {
    malformed(name, value, kKindNames[static_cast<size_t>(EnvKind::Int)]);
  }
  return number;
}

uint64_t envBytes(std::string_view name) {
  return parseBytes(text(find(name, EnvKind::Bytes)), name);
}

size_t envChoice(std::string_view name) {
  const EnvVariable& variable = find(name, EnvKind::Choice);
  const std::string value = lower(text(variable));
  std::string_view rest = variable.values;
  for (size_t index = 0;; ++index) {
    const size_t bar = rest.find('|');
    if (rest.substr(0, bar) == value) {
      return index;
    }
    if (bar == std::string_view::npos) {
      malformed(name, value, std::string("one of ") + variable.values);
    }
    rest.remove_prefix(bar + 1);
  }
}

std::string envString(std::string_view name) {
  return text(find(name, EnvKind::String));
}

uint64_t parseBytes(std::string_view text, std::string_view what) {
  const size_t unitStart = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = lower(text.substr(unitStart));
  constexpr std::string_view kUnits = "kmgt";
  unsigned shift = 0;
  const bool hasPrefix = !unit.empty() && kUnits.find(unit[0]) != std::string_view::npos;
  if (hasPrefix) {
    shift = 10 * static_cast<unsigned>(kUnits.find(unit[0]) + 1);
  }
  const std::string_view tail = std::string_view(unit).substr(hasPrefix ? 1 : 0);
  uint64_t number = 0;
  if (!parseNumber(text.substr(0, unitStart), number) ||
      !(tail.empty() || tail == "b" || (hasPrefix && tail == "ib")) ||
      number > (std::numeric_limits<uint64_t>::max() >> shift)) {
    malformed(what, text, kKindNames[static_cast<size_t>(EnvKind::Bytes)]);
  }
  return number << shift;
}

} // namespace simdev
