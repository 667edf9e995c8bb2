# shellcheck shell=sh
# The steps of a board day, in their order, and the commands that they run. board-day.sh reads this file.

# A line has the step's name, its group, its limit in seconds, its needs and its command. A need is gpu, root, serial,
# sanitizer, the name of a Python module, or a path: absolute on the board, else in this folder.
steps() {
  table
  # The measurements of speed once more in three other states, each measurement in all states before the next one. These
  # steps come last and are ended when the minutes are used up.
  table | awk '
    function again(state, needs) { print state "-" $1, "modes", $3, needs "," $4, "state", state, "perform", $1 }
    $1 ~ /^(grid|half|workloads|masks|streams)-[cg]pu$/ {
      again("other-mode", "root,/usr/sbin/nvpmodel")
      again("locked", "root,/usr/bin/jetson_clocks")
      again("other-mode-locked", "root,/usr/sbin/nvpmodel,/usr/bin/jetson_clocks")
    }'
}

# Prints the steps that are no repetitions of others.
table() {
  cat <<'END'
system what 60 - system
sensors what 60 - sensors
info what 60 - elsa info --json
verify right 300 - elsa verify --scenario stress --json --backend $cpu
kernels right 300 test/kernels cpu_tests kernels
calls right 900 test/crossing cpu_tests crossing @KERNELS@
calls-without-allocation right 300 test/no_allocation cpu_tests no_allocation
bits-cpu right 600 test/fingerprint program fingerprint --random 100 core $cpu
load-cold gpu 900 gpu load cold
load-warm gpu 300 gpu load warm
fallback gpu 60 gpu fallback
verify-gpu gpu 300 gpu elsa verify --scenario stress --json $gpu
bits-cuda gpu 300 gpu,test/fingerprint program fingerprint --random 100 cuda
conformance gpu 300 gpu,test/crossing gpu_tests crossing conformance:: --skip cuda_ $four
hostile gpu 300 gpu,test/crossing gpu_tests crossing hostile:: $four
outputs-alone gpu 300 gpu,test/crossing gpu_tests crossing cuda_conformance:: $four
determinism gpu 300 gpu,test/crossing gpu_tests crossing cuda_determinism:: $four
tuned gpu 300 gpu,test/crossing gpu_tests crossing cuda_tuned:: $four
linear gpu 300 gpu,test/crossing ELSA_ONLY=cuda gpu_tests crossing $linear $four
stream gpu 300 gpu,test/crossing gpu_tests crossing $stream $four
schedules gpu 300 gpu,test/crossing gpu_tests crossing cuda_schedules:: $four
no-allocation gpu 300 gpu,test/no_allocation gpu_tests no_allocation $four
device-tensors gpu 300 gpu,test/elsa_runtime gpu_tests elsa_runtime cuda:: --skip ptx::tests:: $one
warm gpu 120 gpu,test/crossing gpu_tests crossing cuda_warm::copies_are_counted $one
c-plain gpu 60 gpu,test/plain ELSA_BACKEND=cuda checks plain
c-buffers gpu 60 gpu,test/buffers checks buffers
c-device gpu 60 gpu,test/device checks device
c-linear-device gpu 60 gpu,test/linear_device checks linear_device
c-series-device gpu 60 gpu,test/series_device checks series_device
c-copies gpu 60 gpu,test/copies checks copies
c-graph gpu 60 gpu,test/graph checks graph
scale gpu 300 gpu,test/crossing gpu_tests crossing cuda_scale::scale_ $one
memcheck gpu 900 gpu,sanitizer,test/crossing sanitized memcheck crossing cuda_conformance::hard_cases
racecheck gpu 900 gpu,sanitizer,test/elsa_runtime sanitized racecheck elsa_runtime cuda::tests::tensors::device_tensors
racecheck-linear gpu 900 gpu,sanitizer,test/linear_device $(sanitizer) $racecheck test/linear_device
racecheck-series gpu 900 gpu,sanitizer,test/crossing sanitized racecheck crossing $series
racecheck-random gpu 900 gpu,sanitizer,test/crossing sanitized racecheck crossing cuda_conformance::random
grid-gpu grid 300 gpu bench $grid --seconds $cell $gpu $tables
grid-cpu grid 600 - bench $grid --seconds $cell --backend $cpu $tables
single-cpu grid 60 - bench --seconds $cell --method elsa --shape 1,1,1,900,64 --backend $cpu
baseline-cpu grid 120 - bench --seconds $cell --method all $baseline --backend $cpu $tables
half-gpu fast 120 gpu bench $grid --seconds $cell --method elsa $gpu --dtype f16 --half-scores
workloads-gpu fast 300 gpu bench $workloads --seconds $cell $gpu $tables
workloads-cpu fast 600 - bench $workloads --seconds $cell --backend $cpu $tables
masks-gpu fast 120 gpu bench $masks --seconds $cell $gpu $tables
masks-cpu fast 300 - bench $masks --seconds $cell --backend $cpu $tables
streams-gpu fast 120 gpu streams $gpu
streams-cpu fast 300 - streams --backend $cpu
linear-gpu fast 120 gpu measured linear bench --json --seconds $cell --lengths $lengths --dims 64 $gpu
linear-cpu fast 120 - measured linear bench --json --seconds $cell --lengths $lengths --dims 64 --backend $cpu
series-gpu fast 120 gpu,test/elsa-lab program elsa-lab bench-series --json --seconds $cell --lengths $lengths $gpu
tune fast 300 gpu elsa tune --json $grid --seconds $cell $gpu --out day/tuned.toml
tune-cpu fast 120 - elsa tune --json $baseline --seconds $cell --backend $cpu --out day/tuned-cpu.toml
torch fast 300 gpu,torch,test/gpu_bench.py python gpu_bench.py --seconds $cell --out day
onnx-cpu fast 120 onnxruntime,test/rank4.onnx python quick_start.py $operator CPUExecutionProvider
onnx-gpu fast 120 gpu,onnxruntime,test/rank4.onnx python quick_start.py $operator CUDAExecutionProvider
onnx-cpu-time fast 120 onnxruntime,test/plain.onnx ELSA_THREADS=1 python onnx_time.py $models CPUExecutionProvider
onnx-gpu-time fast 120 gpu,onnxruntime,test/plain.onnx python onnx_time.py $models CUDAExecutionProvider
tensorrt fast 300 gpu,/usr/src/tensorrt/bin/trtexec,test/tensorrt tensorrt
idle energy 60 - sampled sleep $rest
energy-cpu energy 90 - sampled loop 30 $short --backend $cpu
energy-gpu energy 90 gpu sampled loop 30 $short $gpu
locked clocks 240 root,/usr/bin/jetson_clocks state locked brief
other-mode clocks 240 root,/usr/sbin/nvpmodel state other-mode brief
other-mode-locked clocks 240 root,/usr/sbin/nvpmodel,/usr/bin/jetson_clocks state other-mode-locked brief
python robot 120 numpy,test/python/tests/test_elsa.py ELSA_BACKEND=$cpu python python/tests/test_elsa.py
rate-30 robot 90 - loaded 30 $short
rate-60 robot 90 - loaded 60 $short
rate-100 robot 90 - loaded 100 $short
camera robot 60 /dev/video0,test/elsa-robot program elsa-robot $robot --camera /dev/video0 --frames 300
serial robot 60 serial bench --seconds $cell --shape 1,1,64,64,64 --serial $serial
soak soak 900 - sampled loop 30 $long
END
}

# Runs a step: name. The variables are those of the commands in the table.
step() {
  id=$1
  cell=0.2 long=10m short=20s rest=20 grid='' lengths=1,256,1024
  shape='--method elsa --shape 1,12,197,197,64' few='--shape 1,1,64,64,64 --shape 1,1,900,900,64'
  baseline='--shape 1,1,196,196,64 --shape 1,1,900,900,64 --shape 1,12,197,197,64'
  workloads='--method elsa' masks='--method elsa' masked=4,8,512,512,64 warm=''
  # Queries, keys, limits of memory and number of runs of a stream. The limit of the GPU is below the tensors' size.
  rows=1024 keys=32768 limits='--host-budget 256MiB' runs=5
  case $id in *streams-gpu) limits='--host-budget 1GiB --device-budget 16MiB' ;; esac
  # A repetition in another state takes less time than the first measurement.
  case $id in
  other-mode-*-[cg]pu | locked-*) warm='--warmup 100' ;;
  workloads-* | masks-* | streams-*) warm='--warmup 200' ;;
  esac
  for name in vit-b16-224 vit-b16-384 vit-b16-560 clip-vit-l14 swin-t bert-sst2 bert-imdb hsi-mae vggt-frame dpt \
    varlen decode; do
    workloads="$workloads --workload $name"
  done
  if [ -n "$quick" ]; then
    cell=0.02 long=4s short=2s rest=2 grid='--shape 1,1,64,64,64 --shape 1,1,100,100,64' lengths=1,64
    shape='--method elsa --shape 1,1,64,64,64' few=''
    baseline='--shape 1,1,64,64,64'
    warm='--warmup 1' workloads='--method elsa --shape 1,2,64,64,64,causal --shape 1,8,1,256,64' masked=2,1,32,32,16
    rows=16 keys=2048 limits="$limits --eta 0.125" runs=1
  fi
  for part in '' ,causal ,window=32:32 ,causal,window=32:0 ,mask=padding ,mask=bool ,mask=true ,mask=float ,mask=bias \
    ,mask=batch ,mask=row ,packed=32; do
    masks="$masks --shape $masked$part"
  done
  cpu=$(cpu)
  gpu='--backend cuda --fallback fail'
  tables="--csv day/$id.csv --html day/$id.html"
  operator='lib/libelsa_ort.so test/rank4.onnx' models='lib/libelsa_ort.so test'
  robot='--model test/digits.safetensors --json'
  # One at a time: a test allocates the memory that it has just freed, which another test would take.
  one='--test-threads 1' four="--test-threads ${ELSA_TEST_THREADS:-4}"
  racecheck='--tool racecheck --error-exitcode 9'
  # Injected failures require the stand-in driver.
  linear='cuda_linear:: cuda_linear_quadratic:: cuda_linear_readers:: cuda_series:: --skip scenario --skip outlive'
  stream='cuda_stream:: cuda_semantics:: cuda_fit:: --skip refused_memory --skip every_allocation
    --skip memory_that_is --skip a_discrete'
  series='cuda_series::recurrences cuda_series::selective_scans_match cuda_series::convolutions_match'
  cd "$here" && perform "$id"
}

# Runs the command of a step: name.
perform() {
  command=$(steps | sed -n "s/^$1 [^ ]* [^ ]* [^ ]* //p")
  [ -n "$command" ] || { echo "board-day: --step: $1; allowed: a step of --list" >&2; return 2; }
  eval $command
}

elsa() {
  $ELSA_EMULATOR "$here/bin/elsa" "$@"
}

# Status 5 means that something disturbed a measurement. Its rows are marked, and their answers were checked.
measured() {
  elsa "$@"
  code=$?
  [ "$code" = 5 ] || return "$code"
}

bench() {
  measured bench --json $warm "$@"
}

# Runs a program of the folder test.
program() {
  name=$1
  shift
  $ELSA_EMULATOR "$here/test/$name" "$@"
}

# Runs a program of the project's tests, which must run at least one test.
tests() {
  program "$@" && grep -q '^test result: ok\. [1-9]' "$out/$id.out"
}

cpu_tests() {
  ELSA_REQUIRE=$cpu ELSA_ONLY=$cpu ELSA_BACKEND=$cpu PROPTEST_CASES=12 tests "$@"
}

gpu_tests() {
  ELSA_REQUIRE=cuda tests "$@" --include-ignored --nocapture
}

# Runs tests under a tool of NVIDIA's sanitizer.
sanitized() {
  ELSA_EMULATOR="$(sanitizer) --tool $1 --error-exitcode 9"
  shift
  PROPTEST_CASES=16 gpu_tests "$@" --test-threads 1
}

# Runs a C program, whose last line is its number of checks.
checks() {
  program "$1" && tail -n 1 "$out/$id.out" | grep -q '^[1-9][0-9]* checks$'
}

# Runs a Python program of the folder test.
python() {
  name=$1
  shift
  PYTHONPATH=share/python ELSA_LIBRARY=$here/lib/libelsa.so.1 ELSA_TOOL=$here/bin/elsa python3 -B "test/$name" "$@"
}

# Times TensorRT with the plugin and with its own layers. TF32 is off, so both compute in f32.
tensorrt() {
  command -v g++ >/dev/null || { echo "needs g++" >&2; return $absent; }
  g++ -std=c++14 -O2 -shared -fPIC -fvisibility=hidden -Iinclude -I/usr/local/cuda/include -o day/libelsa_tensorrt.so \
    test/tensorrt/elsa_attention.cpp lib/libelsa.a -lpthread -ldl -lm || return
  for model in attention plain; do
    "$root/usr/src/tensorrt/bin/trtexec" --noTF32 --onnx=test/$model.onnx --plugins=day/libelsa_tensorrt.so || return
  done
  set -- $(sed -n 's/.*GPU Compute Time:.* median = \([0-9.]*\) ms.*/\1/p' "$out/$id.out")
  [ $# = 2 ] || { echo "trtexec: $# medians; allowed: 2" >&2; return 1; }
  printf '{"what":"peer","peer":"TensorRT","on":"GPU","shape":"1x12x197x64","elsa_ms":%s,"peer_ms":%s}\n' "$1" "$2"
}

# Prints the path of the program compute-sanitizer, which checks the memory accesses of kernels.
sanitizer() {
  for tool in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    [ -x "$tool" ] && echo "$tool" && return
  done
}

# Prints the name of the processor's widest back end.
cpu() {
  for set in neon avx512 avx2 scalar; do
    grep -q "\"name\":\"$set\",\"present\":true" "$out/info.out" 2>/dev/null && echo "$set" && return
  done
}

# Loads all kernels with a cache of the driver that is empty (cold) or that the step before has filled (warm).
load() {
  [ "$1" = warm ] || rm -rf cache
  CUDA_CACHE_PATH=$here/cache elsa warmup --json --backend cuda --fallback fail
}

# Offers a driver that cannot be loaded. The CPU must compute instead and give the reason.
fallback() {
  mkdir -p broken && : >broken/libcuda.so && : >broken/libcuda.so.1
  LD_LIBRARY_PATH=$here/broken elsa warmup --json --backend cuda --shape 1,1,64,64,64 &&
    grep -q '"fallback":"' "$out/$id.out"
}

# Writes a tensor of one head with rows of 64 numbers: file and rows. Seven numbers repeat, so neighbouring rows differ.
tensor() {
  {
    printf '\223NUMPY\001\000\166\000%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, $2, 64), }"
    # Each fourth byte becomes > or = or its negative twin, the sign and exponent of a number between 0.03 and 0.5.
    yes 'g8q>4zk-m2t=b9f>x5d-h7w=c3r' | LC_ALL=C tr '\n-' '>\276' | head -c $(($2 * 256))
  } >"$1"
}

# Times runs whose tensors stay in their files while the keys pass in chunks, and then the same call in memory.
streams() {
  rm -rf streams && mkdir streams && tensor streams/q.npy $rows && tensor streams/kv.npy $keys || return
  for _ in $(seq $runs); do
    elsa run --json --q streams/q.npy --k streams/kv.npy --v streams/kv.npy --out streams/y.npy $limits "$@"
    code=$?
    [ "$code" = 0 ] || break
  done
  rm -rf streams
  [ "$code" = 0 ] || return "$code"
  bench --method elsa --shape 1,1,$rows,$keys,64 --seconds $cell "$@"
}

# Prints facts as lines key=value.
system() {
  say() { [ -z "$2" ] || echo "$1=$2" | tr '\000\t' '  '; }
  say kernel "$(uname -srm)"
  say distribution "$(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release" 2>/dev/null | tr -d '"')"
  say glibc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
  say model "$(tr -d '\000' 2>/dev/null <"$root/proc/device-tree/model")"
  say l4t "$(head -n 1 "$root/etc/nv_tegra_release" 2>/dev/null)"
  say driver "$(head -n 1 "$root/proc/driver/nvidia/version" 2>/dev/null)"
  say nvpmodel "$("$nvpmodel" -q 2>/dev/null | tr '\n' ' ')"
  say memory "$(sed -n 's/^MemTotal: *//p' /proc/meminfo)"
  say cores "$(getconf _NPROCESSORS_CONF 2>/dev/null)"
  say disk "$(df -Pk . | awk 'NR == 2 { print $1, $4 " KiB free" }')"
  say video "$(id -Gn | tr ' ' '\n' | grep -x video)"
  say cuda "$(ls -d /usr/local/cuda-* 2>/dev/null | tr '\n' ' ')"
  for package in libnvinfer8 libnvinfer10 libcudnn8 libcudnn9 nvidia-l4t-core nvidia-jetpack gcc; do
    say "$package" "$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null)"
  done
  say python "$(python3 --version 2>&1)"
  for module in numpy torch onnxruntime tensorrt; do
    say "$module" "$(python3 -c "import $module; print($module.__version__)" 2>/dev/null)"
  done
}

# Lists files of sensors and clocks, with their first lines. A - stands for a file that the system refuses to read.
sensors() {
  cd "$root/" || return
  for path in etc/nv_tegra_release proc/device-tree/model proc/device-tree/compatible var/lib/nvpmodel/status \
    sys/class/thermal/*/type sys/class/thermal/*/temp sys/class/thermal/*/*_state sys/class/thermal/*/trip_point_* \
    sys/class/hwmon/*/* sys/bus/i2c/devices/*/name sys/bus/i2c/devices/*/iio*/* sys/bus/i2c/devices/*/hwmon/*/* \
    sys/class/devfreq/*/*freq* sys/class/devfreq/*/governor sys/class/devfreq/*/device/load \
    sys/class/devfreq/*/device/of_node/name sys/class/devfreq/*/device/railgate_enable \
    sys/devices/system/cpu/online sys/devices/system/cpu/cpu*/online sys/devices/system/cpu/cpu*/cpufreq/* \
    sys/devices/system/cpu/cpu0/cache/index*/[lst]* sys/class/powercap/*/* sys/class/power_supply/*/type \
    sys/class/power_supply/*/*_now \
    sys/kernel/nvpmodel_emc_cap/* sys/kernel/debug/bpmp/debug/clk/emc/* sys/kernel/debug/tegra_bwmgr/* \
    sys/kernel/debug/clk/override.emc/* sys/kernel/debug/cactmon/*; do
    [ -f "$path" ] || continue
    value=$(head -c 200 "$path" 2>/dev/null | tr '\000\011\015' '   ' | head -n 1)
    [ -r "$path" ] || value=-
    printf '/%s\t%s\n' "$path" "$value"
  done >"$out/sensors.tsv"
  wc -l <"$out/sensors.tsv"
}

# Writes the readings of every rail until it is ended: seconds, path and number. IIO reports mW, hwmon mV and mA, and a
# PC its energy in µJ.
sample() {
  while :; do
    now=$(date +%s.%N)
    for path in "$root"/sys/bus/i2c/devices/*/iio*/in_power*_input \
      "$root"/sys/bus/i2c/devices/*/hwmon/hwmon*/in[1-9]_input \
      "$root"/sys/bus/i2c/devices/*/hwmon/hwmon*/curr[1-9]_input "$root"/sys/class/powercap/*/energy_uj; do
      [ -r "$path" ] && read -r value <"$path" && printf '%s\t%s\t%s\n' "$now" "${path#"$root"}" "$value"
    done
    sleep 0.2
  done >"$out/$id.rails.tsv" 2>/dev/null
}

# Runs a command while the rails are sampled.
sampled() {
  sample &
  sampler=$!
  "$@"
  status=$?
  kill "$sampler"
  return "$status"
}

# Calls attention at a fixed rate, for a time such as 20s.
loop() {
  rate=$1 time=$2
  shift 2
  bench $shape --rate "$rate" --soak "$time" "$@"
}

# Keeps all cores but one busy while the loop runs.
loaded() {
  busy=''
  for _ in $(seq 2 "$(getconf _NPROCESSORS_ONLN)"); do
    while :; do :; done &
    busy="$busy $!"
  done
  loop "$@"
  status=$?
  [ -z "$busy" ] || kill $busy
  return "$status"
}

# Restores the power mode and the clocks that a step has changed.
undo() {
  [ -f "$out/undo" ] || return 0
  while read -r what value; do
    case $what in
    mode) echo no | "$nvpmodel" -m "$value" ;;
    clocks) "$jetson_clocks" --restore "$value" </dev/null ;;
    esac
  done <"$out/undo"
  rm -f "$out/undo"
}

# Measures a few shapes.
brief() {
  bench --seconds $cell $shape $few --backend "$cpu"
  status=$?
  if have gpu >/dev/null; then
    bench --seconds $cell $shape $few $gpu || status=$?
  fi
  return "$status"
}

# Runs a command in another state: in another power mode (other-mode), with fixed clocks (locked), or both.
state() {
  trap 'undo; exit 143' TERM
  : >"$out/undo"
  case $1 in *other*)
    now=$("$nvpmodel" -q | sed -n 's/^\([0-9][0-9]*\)$/\1/p' | tail -n 1)
    next=$(sed -n 's/^< *POWER_MODEL ID=\([0-9]*\) .*/\1/p' "$root/etc/nvpmodel.conf" | grep -vx "$now" | head -n 1)
    [ -n "$now" ] && [ -n "$next" ] || { echo "nvpmodel: no other mode" >&2; return $absent; }
    echo "mode $now" >>"$out/undo"
    ;;
  esac
  case $1 in *locked*)
    "$jetson_clocks" --store "$out/clocks" || return
    echo "clocks $out/clocks" >>"$out/undo"
    ;;
  esac
  case $1 in *other*) echo no | "$nvpmodel" -m "$next" || return ;; esac
  case $1 in *locked*) "$jetson_clocks" || return ;; esac
  shift
  elsa info --json && "$@"
  status=$?
  undo
  return "$status"
}
