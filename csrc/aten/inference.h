// What an operator will return, found on the host without running it.
//
// The operator's Meta kernel tells sizes, strides and dtypes.  Many Meta kernels are Python and take a hundred
// microseconds, so what they said is remembered by the arguments' metadata: the second call costs a hash.
#pragma once

#include "aten/plan.h"

#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace simdev {

struct TensorSpec {
  bool defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool conj = false; // dot() and its like return lazily conjugated results
  bool neg = false;
  c10::DimVector sizes;
  c10::DimVector strides;
};

struct Inference {
  // One entry for each fresh return; a list return has as many specs as tensors, any other has one.
  std::vector<std::vector<TensorSpec>> fresh;
  // Sizes that `out=` arguments must be resized to, by argument index.
  std::vector<std::pair<size_t, TensorSpec>> resized;
};

class InferenceCache {
 public:
  using Key = std::vector<uint64_t>;
  std::shared_ptr<const Inference> find(const Key& key);
  void insert(Key key, std::shared_ptr<const Inference> inference);

 private:
  struct Hash {
    size_t operator()(const Key& key) const noexcept;
  };
  // Signatures of one operator kept; a scalar argument that changes with every call would grow the table for ever.
  static constexpr size_t kMaxEntries = 2048;
  std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Inference>, Hash> entries_;
};

enum class InferenceFailure : uint8_t {
  None,
  NoMetaKernel, // or outputs whose shapes depend on data
  NotLearned, // plan.learned, and no call with this signature has been made yet
  Rejected, // the Meta kernel threw: the kernel itself, run synchronously, has the last word and the better message
};

// Remembers what an operator with plan.learned returned for these arguments.
void learn(
    const OperatorPlan& plan,
    c10::ArrayRef<c10::IValue> arguments,
    c10::ArrayRef<c10::IValue> results);

// nullptr on failure.
std::shared_ptr<const Inference>
infer(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments, InferenceFailure& failure);

} // namespace simdev
