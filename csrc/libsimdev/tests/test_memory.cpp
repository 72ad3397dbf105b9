// Device and pinned memory: allocation, capacity, attributes, copies in every direction, isolation, peers.
#include "test.h"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

std::vector<unsigned char> pattern(size_t bytes, unsigned seed = 1) {
  std::vector<unsigned char> result(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    result[i] = static_cast<unsigned char>((i * 131 + seed * 17) >> 3);
  }
  return result;
}

TEST(round_trips_of_all_sizes) {
  for (size_t bytes : {size_t(1), size_t(511), size_t(4096), size_t(1) << 20, (size_t(5) << 20) + 3}) {
    void* device = nullptr;
    OK(simMalloc(&device, bytes));
    CHECK(reinterpret_cast<uintptr_t>(device) % 512 == 0);
    const auto source = pattern(bytes);
    std::vector<unsigned char> back(bytes);
    OK(simMemcpy(device, source.data(), bytes, simMemcpyHostToDevice));
    OK(simMemcpy(back.data(), device, bytes, simMemcpyDefault));
    CHECK(back == source);
    OK(simFree(device));
  }
}

TEST(every_direction) {
  constexpr size_t kBytes = 100000;
  void *a = nullptr, *b = nullptr, *peer = nullptr, *pinned = nullptr;
  OK(simMalloc(&a, kBytes));
  OK(simMalloc(&b, kBytes));
  OK(simMallocHost(&pinned, kBytes));
  OK(simSetDevice(1));
  OK(simMalloc(&peer, kBytes));
  OK(simSetDevice(0));
  const auto source = pattern(kBytes);
  std::memcpy(pinned, source.data(), kBytes);
  OK(simMemcpy(a, pinned, kBytes, simMemcpyHostToDevice));
  OK(simMemcpy(b, a, kBytes, simMemcpyDeviceToDevice));
  OK(simMemcpyPeer(peer, 1, b, 0, kBytes));
  OK(simMemset(a, 0, kBytes));
  OK(simMemcpy(a, peer, kBytes, simMemcpyDefault));
  std::vector<unsigned char> back(kBytes), again(kBytes);
  OK(simMemcpy(back.data(), a, kBytes, simMemcpyDeviceToHost));
  OK(simMemcpy(again.data(), back.data(), kBytes, simMemcpyHostToHost));
  CHECK(again == source);
  EXPECT(simErrorInvalidMemcpyDirection, simMemcpy(a, back.data(), kBytes, simMemcpyDeviceToHost));
  EXPECT(simErrorInvalidValue, simMemcpyPeer(peer, 0, b, 0, kBytes));
  OK(simFreeHost(pinned));
}

TEST(rows_with_pitches) {
  constexpr size_t kWidth = 30, kHeight = 9, kPitch = 64;
  void* device = nullptr;
  OK(simMalloc(&device, kPitch * kHeight));
  OK(simMemset(device, 7, kPitch * kHeight));
  const auto source = pattern(kWidth * kHeight);
  OK(simMemcpy2D(device, kPitch, source.data(), kWidth, kWidth, kHeight, simMemcpyHostToDevice));
  OK(simMemset2D(static_cast<char*>(device) + kWidth, kPitch, 9, 4, kHeight));
  std::vector<unsigned char> all(kPitch * kHeight);
  OK(simMemcpy(all.data(), device, all.size(), simMemcpyDeviceToHost));
  for (size_t row = 0; row < kHeight; ++row) {
    for (size_t column = 0; column < kPitch; ++column) {
      const unsigned char expected =
          column < kWidth ? source[row * kWidth + column] : (column < kWidth + 4 ? 9 : 7);
      CHECK(all[row * kPitch + column] == expected);
    }
  }
  EXPECT(
      simErrorInvalidValue, simMemcpy2D(device, 8, source.data(), kWidth, kWidth, 2, simMemcpyHostToDevice));
}

TEST(capacity_is_finite_and_recovers) {
  setenv("SIMDEV_MEMORY_LIMIT", "64M", 1);
  size_t free = 0, total = 0;
  OK(simMemGetInfo(&free, &total));
  CHECK(total == size_t(64) << 20);
  CHECK(free == total);
  std::vector<void*> blocks;
  void* block = nullptr;
  while (simMalloc(&block, size_t(2) << 20) == simSuccess) {
    blocks.push_back(block);
  }
  CHECK(blocks.size() == 32);
  CHECK(simGetLastError() == simErrorMemoryAllocation);
  OK(simMemGetInfo(&free, &total));
  CHECK(free == 0);
  for (size_t i = 0; i < blocks.size(); i += 2) {
    OK(simFree(blocks[i]));
  }
  EXPECT(simErrorMemoryAllocation, simMalloc(&block, size_t(40) << 20));
  for (size_t i = 1; i < blocks.size(); i += 2) {
    OK(simFree(blocks[i]));
  }
  OK(simMalloc(&block, size_t(64) << 20)); // the pieces have merged
  OK(simFree(block));
}

TEST(bad_arguments) {
  void* pointer = nullptr;
  int onStack = 0;
  EXPECT(simErrorInvalidValue, simMalloc(nullptr, 16));
  EXPECT(simErrorMemoryAllocation, simMalloc(&pointer, SIZE_MAX));
  EXPECT(simErrorMemoryAllocation, simMalloc(&pointer, SIZE_MAX / 2));
  OK(simMalloc(&pointer, 0));
  CHECK(pointer == nullptr);
  OK(simFree(nullptr));
  EXPECT(simErrorInvalidValue, simFree(&onStack));
  OK(simMalloc(&pointer, 4096));
  EXPECT(simErrorInvalidValue, simFree(static_cast<char*>(pointer) + 512));
  EXPECT(simErrorIllegalAddress, simMemset(pointer, 0, 1 << 20));
  OK(simFree(pointer));
  EXPECT(simErrorInvalidValue, simFree(pointer));
  EXPECT(simErrorIllegalAddress, simMemset(pointer, 0, 16));
  EXPECT(simErrorInvalidDevice, simSetDevice(7));
  EXPECT(simErrorInvalidDevice, simSetDevice(-1));
  CHECK(std::string(simGetErrorName(simErrorInvalidDevice)) == "simErrorInvalidDevice");
  CHECK(simGetLastError() == simErrorInvalidDevice);
  CHECK(simGetLastError() == simSuccess);
}

TEST(pointer_attributes) {
  simPointerAttributes attributes;
  int onStack = 0;
  OK(simPointerGetAttributes(&attributes, &onStack));
  CHECK(attributes.type == simMemoryTypeUnregistered);
  void *device = nullptr, *pinned = nullptr;
  OK(simSetDevice(1));
  OK(simMalloc(&device, 5000));
  OK(simMallocHost(&pinned, 100));
  OK(simPointerGetAttributes(&attributes, static_cast<char*>(device) + 4999));
  CHECK(attributes.type == simMemoryTypeDevice && attributes.device == 1);
  CHECK(attributes.base == device && attributes.size == 5000);
  OK(simPointerGetAttributes(&attributes, pinned));
  CHECK(attributes.type == simMemoryTypeHost && attributes.device == -1);
  OK(simFree(device));
  OK(simPointerGetAttributes(&attributes, device));
  CHECK(attributes.type == simMemoryTypeUnregistered);
}

TEST(malformed_environment) {
  for (const char* value : {"lots", "-1", "1.5G", "12X", ""}) {
    const test::Death death = test::inChild([value] {
      setenv("SIMDEV_MEMORY_LIMIT", value, 1);
      const simError_t error = simInit();
      std::fprintf(stderr, "%d %s", static_cast<int>(error), simGetLastErrorDetail());
    });
    CHECK(death.status == 0);
    if (*value != '\0') {
      CHECK(death.output.rfind("1 ", 0) == 0);
      CHECK(death.output.find("SIMDEV_MEMORY_LIMIT") != std::string::npos);
      CHECK(death.output.find(value) != std::string::npos);
    } else {
      CHECK(death.output.rfind("0 ", 0) == 0); // empty is unset
    }
  }
}

TEST(host_access_is_reported_with_device_and_allocation) {
  for (const bool write : {false, true}) {
    const test::Death death = test::inChild([write] {
      void* device = nullptr;
      OK(simSetDevice(1));
      OK(simMalloc(&device, 12345));
      volatile char* byte = static_cast<char*>(device) + 100;
      if (write) {
        *byte = 1;
      } else {
        std::fprintf(stderr, "%d", *byte);
      }
    });
    CHECK(death.status != 0);
    CHECK(death.output.find("device 1") != std::string::npos);
    CHECK(death.output.find("12345") != std::string::npos);
    CHECK(death.output.find("100") != std::string::npos);
  }
}

struct ReachArguments {
  void* pointer;
};

void reach(const simKernelContext* context, const void* args) {
  auto* word =
      static_cast<volatile int*>(simLocalPointer(context, static_cast<const ReachArguments*>(args)->pointer));
  *word = 42;
}

void reachPeer(const simKernelContext* context, const void* args) {
  void* pointer = simTranslatePointer(context->device, static_cast<const ReachArguments*>(args)->pointer);
  if (pointer == nullptr) {
    simKernelFail("no access");
    return;
  }
  *static_cast<int*>(pointer) = 43;
}

TEST(a_kernel_cannot_reach_another_devices_memory) {
  const test::Death death = test::inChild([] {
    ReachArguments arguments{};
    OK(simSetDevice(1));
    OK(simMalloc(&arguments.pointer, 4096));
    OK(simSetDevice(0));
    const simLaunchConfig config{{1, 1, 1}, {1, 1, 1}, nullptr, "reach"};
    OK(simLaunchKernel(&config, reach, &arguments, sizeof(arguments)));
    simDeviceSynchronize();
  });
  CHECK(death.status != 0);
}

TEST(peer_access_is_off_until_enabled) {
  ReachArguments arguments{};
  OK(simSetDevice(1));
  OK(simMalloc(&arguments.pointer, 4096));
  OK(simSetDevice(0));
  int can = 0;
  OK(simDeviceCanAccessPeer(&can, 0, 1));
  CHECK(can == 1);
  const simLaunchConfig config{{1, 1, 1}, {1, 1, 1}, nullptr, "reachPeer"};
  OK(simLaunchKernel(&config, reachPeer, &arguments, sizeof(arguments)));
  EXPECT(simErrorLaunchFailure, simDeviceSynchronize());
  CHECK(std::string(simGetLastErrorDetail()) == "reachPeer: no access");
  OK(simDeviceEnablePeerAccess(1, 0));
  EXPECT(simErrorPeerAccessAlreadyEnabled, simDeviceEnablePeerAccess(1, 0));
  OK(simLaunchKernel(&config, reachPeer, &arguments, sizeof(arguments)));
  OK(simDeviceSynchronize());
  int value = 0;
  OK(simMemcpy(&value, arguments.pointer, sizeof(value), simMemcpyDefault));
  CHECK(value == 43);
  OK(simDeviceDisablePeerAccess(1));
  EXPECT(simErrorPeerAccessNotEnabled, simDeviceDisablePeerAccess(1));
  EXPECT(simErrorInvalidDevice, simDeviceEnablePeerAccess(9, 0));
}

} // namespace

int main() {
  return test::main("memory");
}
