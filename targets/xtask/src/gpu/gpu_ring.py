"""Attention over tokens spread over several GPUs of this machine, compared with one GPU and with PyTorch's context parallelism.

    python3 gpu_ring.py [--processes P] [--tokens N,N,...] [--seconds X] [--out FOLDER]

Batch 1, 8 heads of 64 in FP32, plain and causal, by default 64K and 256K tokens. A time is the median over the rounds of the
slowest rank's time between two barriers. The speed is the time of one GPU / the time of P, and the efficiency is the speed / P. One
GPU computes the whole call by elsa.attention. The overlap is the share of the time of NCCL's kernels in which another kernel
runs too, by torch's profiler on rank 0, whose timeline is in the folder. The error is the largest difference from f64 on
some queries of rank 0, relative to the largest value. Peers: torch's context_parallel with each of its FP32 kernels, in its own
order of tokens; a peer that fails has the reason. Prints a JSON line for each cell, and writes gpu-ring.jsonl.
"""

import argparse
import json
import os
import sys
import time

os.environ.setdefault("ELSA_LIBRARY", os.path.join(os.path.dirname(os.path.realpath(__file__)), "libelsa.so.1"))
import elsa.distributed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as functional  # noqa: E402

HEADS, DIM, CHECKED = 8, 64, 64
torch.backends.cuda.matmul.allow_tf32 = False


def tensors(tokens, device):
    """Returns q, k, v of all tokens, the same on every rank."""
    random = torch.Generator(device="cpu").manual_seed(7)
    return [torch.randn(1, HEADS, tokens, DIM, generator=random).to(device) for _ in range(3)]


def exact(q, k, v, rows, causal):
    """Returns the answer in f64 for the queries at the positions `rows`."""
    scores = q[:, :, rows].double() @ k.double().transpose(-1, -2) * DIM**-0.5
    if causal:
        late = torch.arange(k.shape[2], device=q.device)[None] > rows[:, None]
        scores.masked_fill_(late, float("-inf"))
    return scores.softmax(-1) @ v.double()


def timed(call, seconds, ranks):
    """Returns the median milliseconds of the slowest rank, the peak bytes beyond those at the start, and the answer."""
    out = call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, times, end = torch.cuda.memory_allocated(), [], time.monotonic() + seconds
    while True:
        if ranks > 1:
            dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = call()
        torch.cuda.synchronize()
        # All ranks take the same number of rounds.
        facts = torch.tensor([time.perf_counter() - start, float(time.monotonic() > end)], device="cuda")
        if ranks > 1:
            dist.all_reduce(facts, dist.ReduceOp.MAX)
        times.append(facts[0].item() * 1e3)
        if facts[1].item() and len(times) >= 3:
            break
    peak = torch.cuda.max_memory_allocated() - before
    return sorted(times)[len(times) // 2], peak, out


def overlap(call, path):
    """Writes the timeline of a call. Returns the share of the time of NCCL's kernels in which another kernel runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    seen.export_chrome_trace(path)
    with open(path) as file:
        kernels = [e for e in json.load(file)["traceEvents"] if e.get("cat") == "kernel"]
    spans = lambda moved: sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels if ("nccl" in e["name"].lower()) == moved)
    computed, total, both = spans(False), 0.0, 0.0
    for begin, end in spans(True):
        total += end - begin
        at = begin
        for first, last in computed:
            first, last = max(first, at), min(last, end)
            if last > first:
                both, at = both + last - first, last
    return both / total if total else None


def peer(q, k, v, causal, mesh, kernel):
    """Returns a call of torch's context parallelism on this rank's tensors, whose order of tokens is its own."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call():
        mine = [x.clone() for x in (q, k, v)]
        with sdpa_kernel(getattr(SDPBackend, kernel)), context_parallel(mesh, buffers=mine, buffer_seq_dims=[2] * 3):
            return functional.scaled_dot_product_attention(*mine, is_causal=causal)

    return call


def unsharded(out, mesh):
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    return context_parallel_unshard(mesh, [out], [2])[0]


def cells(rank, ranks, arguments):
    """Yields the facts of every cell."""
    device = torch.device("cuda", rank)
    mesh = dist.init_device_mesh("cuda", (ranks,))
    for tokens in arguments.tokens:
        whole = tensors(tokens, device)
        # Queries from the first to the last one, whose answers in f64 fit in memory.
        rows = torch.linspace(0, tokens - 1, CHECKED, device=device).round().long()
        for causal in (False, True):
            wanted = torch.cat([exact(*whole, part, causal) for part in rows.split(8)], 2)
            error = lambda out: ((out.double() - wanted).abs().max() / wanted.abs().max()).item()
            base = {"tokens": tokens, "heads": HEADS, "dim": DIM, "causal": causal, "processes": ranks}
            base.update(device=torch.cuda.get_device_name(), torch=torch.__version__, elsa=elsa.version())
            one, peak, out = timed(lambda: elsa.attention(*whole, causal=causal), arguments.seconds, 1)
            yield dict(base, method="one GPU", ms=one, peak_bytes=peak, error=error(out[:, :, rows]))
            for order in ("zigzag", "contiguous"):
                here = torch.tensor(elsa.distributed.positions(tokens, rank, ranks, order), device=device)
                q, k, v = [x[:, :, here] for x in whole]
                call = lambda: elsa.distributed.ring_attention(q, k, v, causal=causal, order=order)
                ms, peak, out = timed(call, arguments.seconds, ranks)
                parts = [torch.empty_like(out) for _ in range(ranks)]
                dist.all_gather(parts, out.contiguous())
                places = [elsa.distributed.positions(tokens, r, ranks, order) for r in range(ranks)]
                found = torch.empty_like(whole[0])
                for place, part in zip(places, parts):
                    found[:, :, torch.tensor(place, device=device)] = part
                name = f"{'causal' if causal else 'plain'}-{tokens}-{order}-{rank}.json"
                share = overlap(call, os.path.join(arguments.out, name))
                facts = dict(ms=ms, peak_bytes=peak, speed=one / ms, efficiency=one / ms / ranks, overlap=share)
                yield dict(base, method=f"ring, {order}", error=error(found[:, :, rows]), **facts)
            for kernel in ("EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"):
                facts = dict(base, method=f"context_parallel, {kernel}")
                try:
                    ms, peak, out = timed(peer(*whole, causal, mesh, kernel), arguments.seconds, ranks)
                    found = unsharded(out, mesh)
                    yield dict(facts, ms=ms, peak_bytes=peak, speed=one / ms, error=error(found[:, :, rows]))
                except Exception as reason:
                    yield dict(facts, failed=f"{type(reason).__name__}: {str(reason)[:300]}")
        del whole


def work(rank, ranks, arguments):
    torch.cuda.set_device(rank)
    meet = "file://" + os.path.join(arguments.out, f"meet-{arguments.stamp}")
    dist.init_process_group("nccl", init_method=meet, rank=rank, world_size=ranks)
    with open(os.path.join(arguments.out, "gpu-ring.jsonl") if rank == 0 else os.devnull, "w") as file:
        for facts in cells(rank, ranks, arguments):
            if rank == 0:
                print(json.dumps(facts), flush=True)
                print(json.dumps(facts), file=file, flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="GPUs [default: 2]")
    parser.add_argument("--tokens", default="65536,262144", help="numbers of tokens [default: 65536,262144]")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each cell [default: 2]")
    parser.add_argument("--out", default="gpu-ring", help="folder of the results [default: gpu-ring]")
    arguments = parser.parse_args()
    arguments.tokens = [int(n) for n in arguments.tokens.split(",")]
    arguments.out, arguments.stamp = os.path.realpath(arguments.out), f"{os.getpid()}-{time.time_ns()}"
    found = torch.cuda.device_count()
    if not 1 <= arguments.processes <= found:
        sys.exit(f"--processes: {arguments.processes}; allowed: 1 to {found}, the GPUs of this machine")
    os.makedirs(arguments.out, exist_ok=True)
    torch.multiprocessing.spawn(work, args=(arguments.processes, arguments), nprocs=arguments.processes)


if __name__ == "__main__":
    main()
