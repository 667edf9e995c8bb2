#!/bin/sh
# Measures attention on this machine's GPU. With PyTorch for Python 3: run.sh [--only TEXT] [--seconds X] [--out FOLDER], see
# gpu_bench.py. Without: the tool's own table of the same shapes, with device times by events and no peer. With run.sh series
# [FLAGS]: recurrences, selective scans and convolutions, see elsa-lab bench-series --help. With run.sh ring [--processes P]
# [--out FOLDER]: attention over the tokens of several GPUs, see gpu_ring.py. With run.sh errors [--out FOLDER]: errors by case,
# and a picture of them, see gpu_errors.py.
cd "$(dirname "$0")" || exit 2
if [ "$1" = series ]; then
  shift
  exec ./elsa-lab bench-series --backend cuda --fallback fail "$@"
fi
if [ "$1" = ring ]; then
  shift
  exec python3 -B gpu_ring.py "$@"
fi
if [ "$1" = errors ]; then
  shift
  exec python3 -B gpu_errors.py "$@"
fi
if python3 -c 'import torch' 2>/dev/null; then
  exec python3 -B gpu_bench.py "$@"
fi
echo "PyTorch is not installed for python3: measured without peers" >&2
shapes=""
for n in 1024 2048 4096 8192 16384; do shapes="$shapes --shape 1,8,$n,$n,64"; done
for n in 64 100 144 196 256 576 900; do shapes="$shapes --shape 1,1,$n,$n,64"; done
for d in 32 80 96 128 256; do shapes="$shapes --shape 1,8,4096,4096,$d"; done
# shellcheck disable=SC2086
exec ./elsa bench --wide --backend cuda --method elsa --seconds 1 $shapes \
  --shape 1,12,196,196,64 --shape 1,12,900,900,64 --shape 8,12,197,197,64 --shape 1,16,1041,1041,64 \
  --shape 1,8,1024,1024,64,causal --shape 1,8,4096,4096,64,causal \
  --shape 1,32,1,4096,128 --shape 1,32,1,4096,128,kv=8 --shape 1,32,1,65536,128,kv=8
