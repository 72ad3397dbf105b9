// The results of a graph that is replayed again and again, as tensors that nobody writes to behind their holder's back.
//
// A replay writes where the capture did.  That memory is lent out under storages of its own, and the graph may be replayed
// when they are gone.  Results that are known to be held for longer are copied out instead.  Does not live here: capture
// and replay (graph.h), and when a graph is recorded (torch_simdev/compile/graph.py).
#pragma once

#include "runtime/stream.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <vector>

namespace simdev {

class GraphOutputs {
 public:
  // Tensors of the graph's own memory, which they and whatever is lent keep alive.  They must not be used otherwise.
  // `copied`: indices of those to copy out.
  GraphOutputs(std::vector<at::Tensor> outputs, const std::vector<size_t>& copied);

  // The indices of the outputs whose memory somebody still holds: none before the first replay and before a further one.
  std::vector<size_t> held() const;
  // Before a replay: makes the stream wait for what other streams do with memory that was lent (record_stream).
  void waitForUses(const Stream& stream);
  // The results of a replay that was launched on the stream.  Tensors that share memory at the capture share it here.
  std::vector<at::Tensor> take(const Stream& stream);

  // Whether the tensor's memory is that of a graph which lent it.
  static bool isLent(const at::Tensor& tensor);
  // For the allocator: notes a stream that uses memory, if it is lent.
  static void recordStream(const c10::DataPtr& data, const Stream& stream);

 private:
  // The streams that use lent memory.
  struct Uses {
    std::mutex mutex;
    std::vector<Stream> streams;
  };
  // What a lent storage holds.
  struct Loan {
    c10::Storage owner;
    std::shared_ptr<Uses> uses;
  };
  struct Memory {
    c10::Storage storage;
    bool copied = false;
    std::shared_ptr<Uses> uses = std::make_shared<Uses>();
    c10::weak_intrusive_ptr<c10::StorageImpl> lent{c10::intrusive_ptr<c10::StorageImpl>()};
  };

  static void endLoan(void* loan);
  static c10::intrusive_ptr<c10::StorageImpl> lend(Memory& memory);
  static c10::intrusive_ptr<c10::StorageImpl> copyOut(const Memory& memory, const Stream& stream);

  std::vector<at::Tensor> outputs_;
  std::vector<size_t> memoryOf_; // by output
  std::vector<Memory> memories_;
};

} // namespace simdev
