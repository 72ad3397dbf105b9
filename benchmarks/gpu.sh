#!/bin/sh
# Builds, tests and measures the device on a GPU, within nine minutes, on a machine that has PyTorch with CUDA, a
# C++20 compiler, ninja, pytest and pytest-xdist.  Usage: benchmarks/gpu.sh [folder for the results].  Exits with 1 if
# anything failed.
#
# Leaves build.log, tests-cuda.log, sweep.log, sweep.json, tests-simulator.log, gpu.log (the table) and gpu.json there.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${1:-build/gpu}"
out=$(cd "${1:-build/gpu}" && pwd)
python=${PYTHON:-python3}
export MAX_JOBS="${MAX_JOBS:-$(nproc)}"

# Runs a command with a time limit, its output in a file, and says how it went.
run() { # name, seconds, command...
  name=$1
  limit=$2
  shift 2
  started=$(date +%s)
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "$name: exit status $status after $(($(date +%s) - started)) s"
  return $status
}

run build 240 "$python" setup.py build_ext --inplace || {
  grep -E 'error|FAILED' "$out/build.log" | head -30
  exit 1
}
failed=0
# The extension needs nothing of CUDA's: the same file works beside a PyTorch without it.
if readelf -d torch_simdev/_C*.so | grep -iE 'NEEDED.*(cuda|cudart|nvrtc)'; then failed=1; fi

# `import torch` loads an installed package by its entry point.  This one runs from its tree, with an entry point beside it.
site=build/gpu-site
mkdir -p $site/torch_simdev-0.dist-info
printf 'Metadata-Version: 2.1\nName: torch_simdev\nVersion: 0\n' >$site/torch_simdev-0.dist-info/METADATA
printf '[torch.backends]\nsimdev = torch_simdev:_autoload\n\n[torch_dynamo_backends]\nsimdev = torch_simdev.compile.backend:simdev\n' \
  >$site/torch_simdev-0.dist-info/entry_points.txt
export PYTHONPATH="$PWD:$PWD/$site"

pytest="$python -m pytest -q -p no:cacheprovider --maxfail=30"
SIMDEV_DRIVER=cuda run tests-cuda 200 $pytest -n 3 -m 'not slow' tests/test_cuda_driver.py &
cuda=$!
SIMDEV_DRIVER=cuda run sweep 200 "$python" -m tests.conformance.delegate_sweep --jobs 6 --json "$out/sweep.json" &
sweep=$!
OMP_NUM_THREADS=2 SIMDEV_DRIVER=simulator run tests-simulator 200 $pytest -n 7 tests/test_operators.py tests/test_runtime.py \
  tests/test_streams_events.py tests/test_frontend.py tests/test_random.py tests/test_models.py &
simulator=$!
for job in $cuda $sweep $simulator; do
  wait $job || failed=1
done

SIMDEV_DRIVER=cuda run gpu 280 "$python" benchmarks/gpu.py --json "$out/gpu.json" || failed=1

for log in tests-cuda sweep tests-simulator; do
  echo "--- $log"
  tail -n 30 "$out/$log.log" | cut -c 1-240
done
echo "--- gpu"
cat "$out/gpu.log"
exit $failed
