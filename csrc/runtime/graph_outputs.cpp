// Lending and copying the results of replays.  See graph_outputs.h.
#include "runtime/graph_outputs.h"

#include "driver/driver.h"
#include "runtime/caching_allocator.h"
#include "runtime/event.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>

namespace simdev {

GraphOutputs::GraphOutputs(std::vector<at::Tensor> outputs, const std::vector<size_t>& copied)
    : outputs_(std::move(outputs)) {
  for (const at::Tensor& output : outputs_) {
    const auto known = std::ranges::find_if(
        memories_, [&](const Memory& memory) { return memory.storage.is_alias_of(output.storage()); });
    memoryOf_.push_back(static_cast<size_t>(known - memories_.begin()));
    if (known == memories_.end()) {
      memories_.push_back({output.storage()});
    }
  }
  for (const size_t output : copied) {
    memories_[memoryOf_.at(output)].copied = true;
  }
}

std::vector<size_t> GraphOutputs::held() const {
  std::vector<size_t> indices;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!memories_[memoryOf_[i]].lent.expired()) {
      indices.push_back(i);
    }
  }
  return indices;
}

void GraphOutputs::waitForUses(const Stream& stream) {
  for (const Memory& memory : memories_) {
    std::vector<Stream> users;
    {
      const std::lock_guard lock(memory.uses->mutex);
      users.swap(memory.uses->streams);
    }
    for (const Stream& user : users) {
      Event used(/*timing=*/false);
      used.record(user);
      used.block(stream);
    }
  }
}

std::vector<at::Tensor> GraphOutputs::take(const Stream& stream) {
  c10::SmallVector<c10::Storage, 8> storages;
  for (Memory& memory : memories_) {
    storages.emplace_back(c10::Storage(memory.copied ? copyOut(memory, stream) : lend(memory)));
  }
  std::vector<at::Tensor> taken;
  taken.reserve(outputs_.size());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const at::Tensor& output = outputs_[i];
    auto impl = c10::make_intrusive<at::TensorImpl>(
        c10::Storage(storages[memoryOf_[i]]),
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        output.dtype());
    impl->set_sizes_and_strides(output.sizes(), output.strides(), output.storage_offset());
    taken.emplace_back(std::move(impl));
  }
  return taken;
}

c10::intrusive_ptr<c10::StorageImpl> GraphOutputs::lend(Memory& memory) {
  auto lent = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      memory.storage.nbytes(),
      c10::DataPtr(
          memory.storage.mutable_data(),
          new Loan{memory.storage, memory.uses},
          &endLoan,
          memory.storage.device()),
      memory.storage.allocator(),
      /*resizable=*/true);
  memory.lent = c10::weak_intrusive_ptr<c10::StorageImpl>(lent);
  return lent;
}

void GraphOutputs::endLoan(void* loan) {
  delete static_cast<Loan*>(loan);
}

c10::intrusive_ptr<c10::StorageImpl> GraphOutputs::copyOut(const Memory& memory, const Stream& stream) {
  const size_t bytes = memory.storage.nbytes();
  c10::DataPtr copy = allocator().allocate(bytes, stream.device_index(), stream.handle());
  driver().memcpyAsync(copy.get(), memory.storage.data(), bytes, MemcpyKind::DeviceToDevice, stream.handle());
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      bytes,
      std::move(copy),
      memory.storage.allocator(),
      /*resizable=*/true);
}

bool GraphOutputs::isLent(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &endLoan;
}

void GraphOutputs::recordStream(const c10::DataPtr& data, const Stream& stream) {
  if (data.get_deleter() != &endLoan) {
    return;
  }
  Uses& uses = *static_cast<Loan*>(data.get_context())->uses;
  const std::lock_guard lock(uses.mutex);
  if (std::ranges::find(uses.streams, stream) == uses.streams.end()) {
    uses.streams.push_back(stream);
  }
}

} // namespace simdev
