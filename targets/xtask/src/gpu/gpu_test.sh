#!/bin/sh
# Tests the CUDA back end on this machine's GPU. Takes no arguments and writes gpu-test.log into this folder. It prints
# one line per step and ends with a line `N passed, N failed`; the status is zero if everything ran and passed.
# GPU_TEST_SKIP=NAME,... skips steps; the summary lists them.
cd "$(dirname "$0")" || exit 2
export ELSA_REQUIRE=cuda RUST_BACKTRACE=0
passed=0
failed=0
summary=""
: >gpu-test.log

note() {
  summary="$summary
$1"
}

# step NAME COMMAND...: a libtest program; it fails if it runs no test.
step() {
  name=$1
  shift
  case ",$GPU_TEST_SKIP," in *",$name,"*)
    note "$name: left out"
    return
    ;;
  esac
  echo "== $name: $*" | tee -a gpu-test.log
  start=$(date +%s)
  "$@" >step.log 2>&1
  status=$?
  seconds=$(($(date +%s) - start))
  cat step.log >>gpu-test.log
  grep -E '^test |panicked|relative error|bytes|cases|problems|ERROR SUMMARY|RACECHECK SUMMARY' step.log | cut -c1-300
  p=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' step.log | tail -1)
  f=$(sed -n 's/^test result: .* \([0-9]*\) failed.*/\1/p' step.log | tail -1)
  p=${p:-0}
  f=${f:-0}
  if [ "$status" -ne 0 ] || [ "$p" -eq 0 ]; then
    [ "$f" -eq 0 ] && f=1
    tail -30 step.log | cut -c1-400
  fi
  passed=$((passed + p))
  failed=$((failed + f))
  note "$name: $p passed, $f failed, status $status, $seconds s"
}

# counted NAME COMMAND...: a C program, which prints the number of its checks last.
counted() {
  name=$1
  shift
  echo "== $name: $*" | tee -a gpu-test.log
  "$@" >step.log 2>&1
  status=$?
  tee -a gpu-test.log <step.log | cut -c1-300
  n=$(sed -n '$s/^\([0-9]*\) checks$/\1/p' step.log)
  if [ "$status" -eq 0 ] && [ "${n:-0}" -gt 0 ]; then
    passed=$((passed + 1))
    note "$name: passed, $n checks"
  else
    failed=$((failed + 1))
    note "$name: FAILED, status $status"
  fi
}

# tool NAME COMMAND...: a command that must succeed.
tool() {
  name=$1
  shift
  echo "== $name: $*" | tee -a gpu-test.log
  if "$@" >step.log 2>&1; then
    passed=$((passed + 1))
    note "$name: passed"
  else
    failed=$((failed + 1))
    note "$name: FAILED"
  fi
  tee -a gpu-test.log <step.log | cut -c1-300
}

all="--include-ignored --nocapture --test-threads 4"
tool info ./elsa info
step conformance ./crossing conformance:: --skip cuda_ $all
step hostile ./crossing hostile:: $all
step outputs-alone ./crossing cuda_conformance:: $all
step determinism ./crossing cuda_determinism:: $all
step tuned ./crossing cuda_tuned:: $all
# Linear attention and the channel operators. Injected failures require the stand-in driver.
step linear env ELSA_ONLY=cuda ./crossing cuda_linear:: cuda_linear_quadratic:: cuda_linear_readers:: cuda_series:: --skip scenario --skip outlive $all
step stream ./crossing cuda_stream:: cuda_semantics:: cuda_fit:: --skip refused_memory --skip every_allocation --skip memory_that_is --skip a_discrete $all
step schedules ./crossing cuda_schedules:: $all
step no-allocation ./no_allocation $all
# One at a time: a test allocates the memory that it has just freed, which another test would take.
# Tests that read the sources have none here.
step device-tensors ./elsa_runtime cuda:: --include-ignored --nocapture --test-threads 1 --skip ptx::tests::
step warm ./crossing cuda_warm::copies_are_counted --include-ignored --nocapture --test-threads 1
counted c-plain env ELSA_BACKEND=cuda ./plain
counted c-buffers ./buffers
counted c-device ./device
counted c-linear-device ./linear_device
counted c-series-device ./series_device
counted c-copies ./copies
counted c-graph ./graph
step scale ./crossing cuda_scale::scale_ --include-ignored --nocapture --test-threads 1
# Status 5: a row was disturbed. The answers are still checked.
tool bench sh -c './elsa bench --force --backend cuda --seconds 0.2 --shape 1,8,1024,1024,64 --json; status=$?; [ "$status" = 0 ] || [ "$status" = 5 ]'
tool bench-series ./elsa-lab bench-series --backend cuda --fallback fail --seconds 0.05 --json

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$sanitizer" ]; then
  one="--include-ignored --nocapture --test-threads 1"
  step memcheck "$sanitizer" --tool memcheck --error-exitcode 9 ./crossing cuda_conformance::hard_cases $one
  step racecheck "$sanitizer" --tool racecheck --error-exitcode 9 ./elsa_runtime cuda::tests::tensors::device_tensors $one
  tool racecheck-linear "$sanitizer" --tool racecheck --error-exitcode 9 ./linear_device
  step racecheck-series "$sanitizer" --tool racecheck --error-exitcode 9 ./crossing cuda_series::recurrences cuda_series::selective_scans_match cuda_series::convolutions_match $one
  PROPTEST_CASES=16 step racecheck-random "$sanitizer" --tool racecheck --error-exitcode 9 ./crossing cuda_conformance::random $one
else
  note "memcheck, racecheck: compute-sanitizer is not on this machine; not run"
fi
rm -f step.log
echo "$summary"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
