// The allocator that PyTorch sees, and its registration.
#include "runtime/caching_allocator.h"

#include "compat.h"
#include "runtime/block_table.h"
#include "runtime/env.h"
#include "runtime/graph_outputs.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

namespace simdev {

namespace {

void reportUsage(DeviceMemory& memory, void* pointer, int64_t size, c10::Device device) {
  const auto [allocated, reserved] = memory.usage();
  c10::reportMemoryUsageToProfiler(pointer, size, allocated, reserved, device);
}

// c10's parser passes over keys it does not know: they may be another accelerator's.
void checkKeys(const std::string& settings) {
  const c10::CachingAllocator::ConfigTokenizer tokens(settings);
  const auto& keys = c10::CachingAllocator::AcceleratorAllocatorConfig::getKeys();
  for (size_t i = 0; i < tokens.size(); i = tokens.skipKey(i) + 2) {
    TORCH_CHECK_VALUE(keys.contains(tokens[i]), "unknown key '", tokens[i], "'");
  }
}

// SIMDEV_ALLOC_CONF overrides PYTORCH_ALLOC_CONF, which c10 reads by itself.  The keys are the same.
void applySettings() {
  const std::string settings = envString("SIMDEV_ALLOC_CONF");
  if (settings.empty()) {
    return;
  }
  try {
    checkKeys(settings);
    c10::CachingAllocator::setAllocatorSettings(settings);
  } catch (const std::logic_error&) { // of std::stoull
    TORCH_CHECK_VALUE(
        false, "SIMDEV_ALLOC_CONF='", settings, "' is malformed: a key has something else than its number");
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "SIMDEV_ALLOC_CONF='", settings, "' is malformed: ", compat::message(error));
  }
  if (c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN("simdev has no expandable segments: the setting in SIMDEV_ALLOC_CONF has no effect");
  }
}

} // namespace

CachingAllocator& allocator() {
  static auto* instance = new CachingAllocator();
  return *instance;
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator())

DeviceMemory& CachingAllocator::startDevice(c10::DeviceIndex device) {
  lazyInit();
  checkDeviceIndex(device);
  std::lock_guard<std::mutex> lock(startMutex_);
  std::atomic<DeviceMemory*>& slot = devices_[static_cast<size_t>(device)];
  if (DeviceMemory* memory = slot.load(std::memory_order_acquire)) {
    return *memory;
  }
  static std::once_flag settingsApplied; // the settings are for all devices; a malformed one throws again
  std::call_once(settingsApplied, &applySettings);
  auto memory = std::make_unique<DeviceMemory>(device, envBool("SIMDEV_MEMORY_SANITIZER"));
  memory->setHistory(history_, /*clear=*/false);
  slot.store(memory.get(), std::memory_order_release);
  return *memory.release();
}

DeviceMemory& CachingAllocator::checkedMemoryOf(c10::DeviceIndex device) {
  lazyInit(); // throws in a forked child, whose locks may be held by threads that are not there
  return memoryOf(resolveDeviceIndex(device));
}

template <class Function>
void CachingAllocator::forEachDevice(Function&& function) {
  for (std::atomic<DeviceMemory*>& slot : devices_) {
    if (DeviceMemory* memory = slot.load(std::memory_order_acquire)) {
      function(*memory);
    }
  }
}

// --- c10::Allocator -------------------------------------------------------------------------------------------

c10::DataPtr CachingAllocator::allocate(size_t n) {
  const c10::DeviceIndex device = currentDevice();
  return allocate(n, device, C10_LIKELY(n != 0) ? currentStreamHandle(device) : nullptr);
}

c10::DataPtr CachingAllocator::allocate(size_t n, c10::DeviceIndex index, StreamHandle stream) {
  const c10::Device device(kDeviceType, index);
  if (C10_UNLIKELY(n == 0)) {
    return {nullptr, nullptr, &deletePointer, device};
  }
  DeviceMemory& memory = memoryOf(index);
  Block* block = memory.allocate(n, stream);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    reportUsage(memory, block->pointer, static_cast<int64_t>(block->size), device);
  }
  return {block->pointer, block->pointer, &deletePointer, device};
}

void CachingAllocator::deletePointer(void* pointer) {
  if (C10_UNLIKELY(isInBadFork())) {
    return; // the memory is the parent's
  }
  Block* block = BlockTable::find(pointer);
  if (C10_UNLIKELY(block == nullptr)) {
    return; // the null pointer of an empty tensor, handed to raw_deallocate()
  }
  DeviceMemory& memory = *block->memory;
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    const auto size = static_cast<int64_t>(block->size);
    memory.free(block);
    reportUsage(memory, pointer, -size, c10::Device(kDeviceType, memory.device()));
  } else {
    memory.free(block);
  }
}

void CachingAllocator::copy_data(void* dest, const void* src, std::size_t count) const {
  const std::optional<PointerInfo> info = driver().pointerInfo(dest);
  TORCH_CHECK(
      info.has_value() && info->kind == PointerInfo::Kind::Device,
      "copy_data: ",
      dest,
      " is not device memory");
  driver().memcpyAsync(dest, src, count, MemcpyKind::DeviceToDevice, currentStreamHandle(info->device));
}

// --- c10::DeviceAllocator -------------------------------------------------------------------------------------

bool CachingAllocator::initialized() {
  return isInitialized();
}

void CachingAllocator::emptyCache(c10::MempoolId_t pool) {
  if (isInitialized()) {
    forEachDevice([&](DeviceMemory& memory) { memory.emptyCache(pool); });
  }
}

void CachingAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  // Memory of other origin (from_blob, another process) is its owner's to protect, as in CUDA.
  if (data.get_deleter() != &deletePointer) {
    GraphOutputs::recordStream(data, Stream(stream));
    return;
  }
  if (Block* block = BlockTable::find(data.get_context())) { // none for an empty tensor
    block->memory->recordStream(block, {Stream(stream).handle(), stream.device_index()});
  }
}

c10::CachingDeviceAllocator::DeviceStats CachingAllocator::getDeviceStats(c10::DeviceIndex device) {
  return checkedMemoryOf(device).stats();
}

void CachingAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  checkedMemoryOf(device).resetAccumulatedStats();
}

void CachingAllocator::resetPeakStats(c10::DeviceIndex device) {
  checkedMemoryOf(device).resetPeakStats();
}

std::pair<size_t, size_t> CachingAllocator::getMemoryInfo(c10::DeviceIndex device) {
  lazyInit();
  const MemoryInfo info = driver().memoryInfo(resolveDeviceIndex(device));
  return {info.free, info.total};
}

// --- Beyond c10's interface -----------------------------------------------------------------------------------

void* CachingAllocator::rawAllocate(size_t n, c10::DeviceIndex device, StreamHandle stream) {
  lazyInit();
  checkDeviceIndex(device);
  return allocate(n, device, stream).release_context();
}

void CachingAllocator::rawDelete(void* pointer) {
  if (pointer != nullptr) {
    const Block* block = BlockTable::find(pointer);
    TORCH_CHECK(block != nullptr && block->memory->isAllocated(block), "invalid device pointer: ", pointer);
    deletePointer(pointer);
  }
}

void CachingAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  checkedMemoryOf(device).setMemoryFraction(fraction);
}

double CachingAllocator::getMemoryFraction(c10::DeviceIndex device) {
  return checkedMemoryOf(device).memoryFraction();
}

void CachingAllocator::beginAllocateToPool(
    c10::DeviceIndex device,
    c10::MempoolId_t id,
    StreamFilter filter) {
  checkedMemoryOf(device).beginAllocateToPool(id, std::move(filter));
}

void CachingAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id) {
  checkedMemoryOf(device).endAllocateToPool(id);
}

void CachingAllocator::retainPool(c10::DeviceIndex device, c10::MempoolId_t id) {
  checkedMemoryOf(device).retainPool(id);
}

void CachingAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t id) {
  checkedMemoryOf(device).releasePool(id);
}

int CachingAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) {
  return checkedMemoryOf(device).poolUseCount(id);
}

void CachingAllocator::recordHistory(const HistorySettings& settings, bool clear) {
  std::lock_guard<std::mutex> lock(startMutex_);
  history_ = settings;
  forEachDevice([&](DeviceMemory& memory) { memory.setHistory(settings, clear); });
}

MemorySnapshot CachingAllocator::snapshot(std::optional<c10::MempoolId_t> pool, bool includeTraces) {
  lazyInit();
  MemorySnapshot result;
  for (c10::DeviceIndex device = 0; device < deviceCount(); ++device) {
    if (DeviceMemory* memory = devices_[static_cast<size_t>(device)].load(std::memory_order_acquire)) {
      memory->snapshot(result, pool, includeTraces);
    } else {
      result.traces.emplace_back();
    }
  }
  return result;
}

std::shared_ptr<c10::GatheredContext> CachingAllocator::contextForPointer(const void* pointer) {
  const Block* block = BlockTable::find(pointer);
  return block != nullptr && isInitialized() ? block->memory->contextOf(block) : nullptr;
}

} // namespace simdev
