#!/usr/bin/env bash
# Cross compiles the kernels for 64-bit ARM and runs their tests under an emulator: `make test-aarch64`. Takes some
# minutes, needs Debian's g++-aarch64-linux-gnu, qemu-user and libgtest-dev, and builds into build/aarch64.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
  if ! command -v "$program" >/dev/null; then
    echo "test_aarch64.sh: there is no $program: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
    exit 1
  fi
done
toolchain=$PWD/cmake/aarch64-linux-gnu.cmake
gtest=$PWD/build/aarch64/gtest
if [ ! -f "$gtest/lib/libgtest_main.a" ]; then
  cmake -S /usr/src/googletest -B "$gtest/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$toolchain" -DBUILD_GMOCK=OFF \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$gtest" -DCMAKE_INSTALL_LIBDIR=lib >/dev/null
  cmake --build "$gtest/build" --target install >/dev/null
fi
cmake -S . -B build/aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE="$toolchain" -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=OFF \
  -DQUIRE_OPS_ONLY=ON -DGTest_DIR="$gtest/lib/cmake/GTest" >/dev/null
tests=(linear_test attention_test ops_test)
cmake --build build/aarch64 --target "${tests[@]}" -j "${JOBS:-2}"
# With the dot products of ARMv8.2, and without: "max" has them, Cortex-A53 has not. Attention has no rows of its own for
# either, so that the second time its two long tests, which compare bits, are left out. The processors run side by side.
run_tests() {
  local cpu=$1 test filter
  shift
  for test in "${tests[@]}"; do
    filter='*'
    if [ "$cpu" != max ]; then filter='-Attention.SameBits*:Attention.RowsOfOneOrder*'; fi
    echo "== $test on $cpu"
    qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$cpu" "build/aarch64/src/ops/$test" --gtest_brief=1 \
      --gtest_filter="$filter" "$@" || return 1
  done
}
log=build/aarch64/cortex-a53.log
run_tests cortex-a53 "$@" >"$log" 2>&1 &
other=$!
failed=0
run_tests max "$@" || failed=1
wait "$other" || failed=1
cat "$log"
exit "$failed"
