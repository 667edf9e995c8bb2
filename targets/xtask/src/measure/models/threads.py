"""Measures what the thread pools of torch and of an engine cost each other in one process: a table in Markdown.

A step is a layer of torch (a product with a matrix) and an attention on an engine, in turn, as in a network. The lone
time of a step is the time of its product in a process without attention, plus that of its attention in a process
without products. The ratio is the median time of a step by its lone time. An engine has its own threads, or computes on
torch's ("openmp"). Both libraries use as many threads as the process has cores, or those of `--threads`.

Exit status 1: a ratio with "openmp" above 1.2, or other bits than those of one thread.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

MOST, ROUNDS = 1.2, 60
# Batch, heads, tokens, head size.
SHAPES = [(1, 12, 197, 64), (1, 12, 577, 64), (8, 12, 197, 64)]


def measure(parts, host, shape, threads):
    """Returns the seconds of a step that has `parts` of "torch" and "elsa"."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    batch, heads, tokens, dim = shape
    x = torch.randn(batch, tokens, heads * dim)
    weight = torch.randn(3 * heads * dim, heads * dim)
    q, k, v = torch.randn(batch, tokens, 3, heads, dim).permute(2, 0, 3, 1, 4).unbind(0)
    if "elsa" in parts:
        import elsa

        engine = elsa.Engine(threads=threads, host=host or None)
        one = elsa.attention(q, k, v, engine=elsa.Engine(engine.backend, threads=1))
    times = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            start = time.perf_counter()
            if "torch" in parts:
                torch.nn.functional.linear(x, weight)
            if "elsa" in parts:
                found = elsa.attention(q, k, v, engine=engine)
            times.append(time.perf_counter() - start)
    if "elsa" in parts and not torch.equal(found, one):
        raise SystemExit("other bits than those of one thread")
    return statistics.median(times[ROUNDS // 4 :])


def child(parts, host, shape, threads):
    words = [sys.executable, "-B", __file__, "--child", parts, host, ",".join(map(str, shape)), str(threads)]
    run = subprocess.run(words, stdout=subprocess.PIPE)
    if run.returncode:
        raise SystemExit(f"{parts} {host}: exit status {run.returncode}")
    return float(run.stdout.decode())


def main():
    if sys.argv[1:2] == ["--child"]:
        parts, host, shape, threads = sys.argv[2:]
        return print(measure(parts.split("+"), host, tuple(map(int, shape.split(","))), int(threads)))
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    threads = parser.parse_args().threads
    print(f"{threads} threads, medians of {ROUNDS} steps")
    print("| batch, heads, tokens, d | engine's threads | torch alone, us | elsa alone, us | both, us | ratio |")
    print("|---|---|---|---|---|---|")
    above = []
    for shape in SHAPES:
        torch_alone = child("torch", "", shape, threads)
        elsa_alone = child("elsa", "", shape, threads)
        for host in ("", "openmp"):
            both = child("torch+elsa", host, shape, threads)
            ratio = both / (torch_alone + elsa_alone)
            times = [f"{1e6 * x:.0f}" for x in (torch_alone, elsa_alone, both)]
            cells = [", ".join(map(str, shape)), host or "own", *times, f"**{ratio:.2f}**"]
            print(f"| {' | '.join(cells)} |", flush=True)
            if host and not ratio <= MOST:
                above.append(f"{shape}: {ratio:.2f}; allowed: at most {MOST}")
    for line in above:
        print(f"slow: {line}")
    if above:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
