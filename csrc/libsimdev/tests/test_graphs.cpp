// Graphs: capture from one and several streams, replay, update, what a capture refuses, lifetimes.
#include "test.h"

#include <atomic>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

namespace {

struct StepArguments {
  int* data;
  int multiply;
  int add;
};

void step(const simKernelContext* context, const void* args) {
  const auto& a = *static_cast<const StepArguments*>(args);
  int* data = static_cast<int*>(simLocalPointer(context, a.data));
  *data = *data * a.multiply + a.add;
}

int* makeInt(int value) {
  int* device = nullptr;
  OK(simMalloc(reinterpret_cast<void**>(&device), sizeof(int)));
  OK(simMemcpy(device, &value, sizeof(value), simMemcpyHostToDevice));
  return device;
}

int valueOf(const int* device) {
  int value = -1;
  OK(simMemcpy(&value, device, sizeof(value), simMemcpyDeviceToHost));
  return value;
}

void launch(simStream_t stream, int* data, int multiply, int addend) {
  const StepArguments arguments{data, multiply, addend};
  const simLaunchConfig config{{1, 1, 1}, {1, 1, 1}, stream, "step"};
  OK(simLaunchKernel(&config, step, &arguments, sizeof(arguments)));
}

simStream_t makeStream() {
  simStream_t stream = nullptr;
  OK(simStreamCreate(&stream));
  return stream;
}

TEST(captured_work_runs_only_when_launched) {
  int* data = makeInt(1);
  simStream_t stream = makeStream();
  OK(simStreamBeginCapture(stream, simStreamCaptureModeGlobal));
  launch(stream, data, 2, 1);
  launch(stream, data, 3, 0);
  simStreamCaptureStatus status = simStreamCaptureStatusNone;
  OK(simStreamIsCapturing(stream, &status));
  CHECK(status == simStreamCaptureStatusActive);
  simGraph_t graph = nullptr;
  OK(simStreamEndCapture(stream, &graph));
  CHECK(valueOf(data) == 1);
  size_t nodes = 0, edges = 0;
  OK(simGraphGetSize(graph, &nodes, &edges));
  CHECK(nodes == 2 && edges == 1);
  simGraphExec_t exec = nullptr;
  OK(simGraphInstantiate(&exec, graph, 0));
  OK(simGraphDestroy(graph)); // the instance lives on
  for (int i = 0; i < 3; ++i) {
    OK(simGraphLaunch(exec, stream));
  }
  OK(simStreamSynchronize(stream));
  CHECK(valueOf(data) == 345); // ((1*2+1)*3 = 9, 57, 345)
  OK(simGraphLaunch(exec, stream));
  OK(simGraphExecDestroy(exec)); // a launch that is queued still runs
  OK(simStreamSynchronize(stream));
  CHECK(valueOf(data) == 2073);
  EXPECT(simErrorInvalidResourceHandle, simGraphLaunch(exec, stream));
}

TEST(fork_and_join_across_streams) {
  int *left = makeInt(0), *right = makeInt(0), *sum = makeInt(0);
  simStream_t origin = makeStream(), side = makeStream();
  simEvent_t fork = nullptr, join = nullptr;
  OK(simEventCreate(&fork));
  OK(simEventCreate(&join));
  OK(simStreamBeginCapture(origin, simStreamCaptureModeThreadLocal));
  launch(origin, left, 1, 1);
  OK(simEventRecord(fork, origin));
  OK(simStreamWaitEvent(side, fork, 0));
  launch(side, right, 1, 10);
  launch(side, right, 2, 0);
  launch(origin, left, 1, 100);
  OK(simEventRecord(join, side));
  OK(simStreamWaitEvent(origin, join, 0));
  launch(origin, sum, 1, 1000);
  simGraph_t graph = nullptr;
  OK(simStreamEndCapture(origin, &graph));
  OK(simGraphDebugDotPrint(graph, "/tmp/simdev_test_graph.dot", 0));
  std::stringstream dot;
  dot << std::ifstream("/tmp/simdev_test_graph.dot").rdbuf();
  CHECK(dot.str().find("digraph") != std::string::npos);
  CHECK(dot.str().find("step") != std::string::npos);
  std::remove("/tmp/simdev_test_graph.dot");
  simGraphExec_t exec = nullptr;
  OK(simGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 20; ++i) { // more would overflow `right`
    OK(simGraphLaunch(exec, origin));
  }
  OK(simStreamSynchronize(origin));
  CHECK(valueOf(left) == 20 * 101);
  CHECK(valueOf(sum) == 20000);
  int expected = 0;
  for (int i = 0; i < 20; ++i) {
    expected = (expected + 10) * 2;
  }
  CHECK(valueOf(right) == expected);
}

TEST(streams_tell_which_capture_they_are_in) {
  simStream_t origin = makeStream(), side = makeStream(), other = makeStream();
  const auto infoOf = [](simStream_t stream) {
    std::pair<simStreamCaptureStatus, unsigned long long> info;
    OK(simStreamGetCaptureInfo(stream, &info.first, &info.second));
    return info;
  };
  OK(simStreamBeginCapture(origin, simStreamCaptureModeRelaxed));
  OK(simStreamBeginCapture(other, simStreamCaptureModeRelaxed));
  const auto first = infoOf(origin);
  CHECK(first.first == simStreamCaptureStatusActive && first.second != 0);
  CHECK(infoOf(other).second != first.second);
  CHECK(infoOf(side).first == simStreamCaptureStatusNone && infoOf(side).second == 0);
  simEvent_t fork = nullptr;
  OK(simEventCreate(&fork));
  OK(simEventRecord(fork, origin));
  OK(simStreamWaitEvent(side, fork, 0));
  CHECK(infoOf(side) == first);
  EXPECT(simErrorStreamCaptureUnsupported, simStreamSynchronize(side));
  CHECK(infoOf(origin).first == simStreamCaptureStatusInvalidated && infoOf(origin).second == first.second);
  simGraph_t graph = nullptr;
  EXPECT(simErrorStreamCaptureInvalidated, simStreamEndCapture(origin, &graph));
  OK(simStreamEndCapture(other, &graph));
  OK(simStreamGetCaptureInfo(origin, nullptr, nullptr));
  CHECK(infoOf(origin).second == 0);
  OK(simStreamBeginCapture(origin, simStreamCaptureModeRelaxed));
  CHECK(infoOf(origin).second > first.second); // never the same number again
  OK(simStreamEndCapture(origin, &graph));
}

TEST(an_unjoined_fork_gives_no_graph) {
  simStream_t origin = makeStream(), side = makeStream();
  simEvent_t fork = nullptr;
  OK(simEventCreate(&fork));
  OK(simStreamBeginCapture(origin, simStreamCaptureModeGlobal));
  OK(simEventRecord(fork, origin));
  OK(simStreamWaitEvent(side, fork, 0));
  launch(side, reinterpret_cast<int*>(8), 1, 1); // captured, never run
  simGraph_t graph = reinterpret_cast<simGraph_t>(1);
  EXPECT(simErrorStreamCaptureUnjoined, simStreamEndCapture(origin, &graph));
  CHECK(graph == nullptr);
  OK(simStreamSynchronize(side)); // back to normal
}

TEST(what_a_capture_refuses_spoils_it) {
  simStream_t stream = makeStream();
  simGraph_t graph = nullptr;
  void* memory = nullptr;
  OK(simStreamBeginCapture(stream, simStreamCaptureModeGlobal));
  EXPECT(simErrorStreamCaptureUnsupported, simStreamSynchronize(stream));
  simStreamCaptureStatus status = simStreamCaptureStatusNone;
  OK(simStreamIsCapturing(stream, &status));
  CHECK(status == simStreamCaptureStatusInvalidated);
  EXPECT(simErrorStreamCaptureInvalidated, simStreamEndCapture(stream, &graph));
  CHECK(graph == nullptr);
  OK(simStreamSynchronize(stream));

  OK(simStreamBeginCapture(stream, simStreamCaptureModeGlobal));
  CHECK(simMalloc(&memory, 16) != simSuccess);
  CHECK(simStreamEndCapture(stream, &graph) != simSuccess);

  OK(simStreamBeginCapture(stream, simStreamCaptureModeRelaxed));
  OK(simMalloc(&memory, 16));
  OK(simStreamEndCapture(stream, &graph));
  size_t nodes = 9;
  OK(simGraphGetSize(graph, &nodes, nullptr));
  CHECK(nodes == 0);

  simEvent_t outside = nullptr;
  simStream_t other = makeStream();
  OK(simEventCreate(&outside));
  OK(simEventRecord(outside, other));
  OK(simStreamBeginCapture(stream, simStreamCaptureModeRelaxed));
  EXPECT(simErrorStreamCaptureIsolation, simStreamWaitEvent(stream, outside, 0));
  CHECK(simStreamEndCapture(stream, &graph) != simSuccess);
  EXPECT(simErrorInvalidValue, simStreamBeginCapture(stream, static_cast<simStreamCaptureMode>(7)));
}

TEST(copies_and_memsets_are_captured) {
  int* pinned = nullptr;
  OK(simMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int)));
  int* data = makeInt(0);
  simStream_t stream = makeStream();
  OK(simStreamBeginCapture(stream, simStreamCaptureModeGlobal));
  OK(simMemsetAsync(data, 1, sizeof(int), stream));
  launch(stream, data, 1, 1);
  OK(simMemcpyAsync(pinned, data, sizeof(int), simMemcpyDeviceToHost, stream));
  simGraph_t graph = nullptr;
  OK(simStreamEndCapture(stream, &graph));
  simGraphExec_t exec = nullptr;
  OK(simGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    *pinned = 0;
    OK(simGraphLaunch(exec, stream));
    OK(simStreamSynchronize(stream));
    CHECK(*pinned == 0x01010102);
  }
}

TEST(update_takes_the_arguments_of_a_graph_of_the_same_shape) {
  int* data = makeInt(0);
  simStream_t stream = makeStream();
  simGraph_t graphs[3] = {};
  for (int i = 0; i < 3; ++i) {
    OK(simStreamBeginCapture(stream, simStreamCaptureModeGlobal));
    launch(stream, data, 1, i == 0 ? 1 : 100);
    if (i == 2) {
      launch(stream, data, 1, 1);
    }
    OK(simStreamEndCapture(stream, &graphs[i]));
  }
  simGraphExec_t exec = nullptr;
  OK(simGraphInstantiate(&exec, graphs[0], 0));
  OK(simGraphLaunch(exec, stream));
  OK(simGraphExecUpdate(exec, graphs[1]));
  OK(simGraphLaunch(exec, stream));
  EXPECT(simErrorGraphExecUpdateFailure, simGraphExecUpdate(exec, graphs[2]));
  OK(simGraphLaunch(exec, stream));
  OK(simStreamSynchronize(stream));
  CHECK(valueOf(data) == 201);
}

struct Counted {
  std::atomic<int> runs{0};
  std::atomic<int> destroyed{0};
  static void run(void* data) { ++static_cast<Counted*>(data)->runs; }
  static void destroy(void* data) { ++static_cast<Counted*>(data)->destroyed; }
};

TEST(a_captured_task_lives_as_long_as_its_graphs) {
  Counted counted;
  simStream_t stream = makeStream();
  OK(simStreamBeginCapture(stream, simStreamCaptureModeGlobal));
  OK(simLaunchTask(stream, "task", Counted::run, Counted::destroy, &counted));
  simGraph_t graph = nullptr;
  OK(simStreamEndCapture(stream, &graph));
  simGraphExec_t exec = nullptr;
  OK(simGraphInstantiate(&exec, graph, 0));
  OK(simGraphLaunch(exec, stream));
  OK(simGraphLaunch(exec, stream));
  OK(simStreamSynchronize(stream));
  CHECK(counted.runs == 2 && counted.destroyed == 0);
  OK(simGraphDestroy(graph));
  CHECK(counted.destroyed == 0);
  OK(simGraphExecDestroy(exec));
  OK(simStreamSynchronize(stream));
  CHECK(counted.destroyed == 1);
}

} // namespace

int main() {
  return test::main("graphs");
}
