"""Compares the form that a plan of linear attention chooses on a GPU with the fastest form: two tables in Markdown.

`linear_forms.py [--all] [--rules RULE ...] [--heads N ...] [--tokens N ...]` needs elsa.py on PYTHONPATH.

The first table has sequences of one batch: five rules, 1 to 128 heads, 32 to 1,048,576 tokens, 64 and 128 dims. It lists the
problems for which another form is more than 1.1 times as fast as the choice, or with `--all` every problem. The second one has
batches of 1 to 16, whose form must not depend on the batch. `--rules`, `--heads` and `--tokens` replace the values of the first
table; `--rules` restricts the second, too. Times are medians of 7 replays of a CUDA graph in turn, in
microseconds; a graph repeats the call up to 20 times. Queries, keys and values are f32 [1, tokens, heads, dims], read where they
lie.

Exit status 1: a form has another result than the choice.
"""

import argparse
import math
import statistics
import sys

import torch

import elsa

# Name, gates per head (1) or per dim (2), and whether it is a delta rule.
RULES = {"linear": (0, False), "gated": (1, False), "gated-dim": (2, False), "delta": (0, True), "gated-delta-dim": (2, True)}
FORMS = ("recurrent", "fused_chunk", "chunk", "scan", "parallel")
REPLAYS, CALLS, GRAPH_US = 7, 20, 2000.0
# Largest problem, in tokens times heads; largest number of tokens for which a form is measured.
MOST, LIMITS = 1 << 21, {"recurrent": 2048, "parallel": 512}


def inputs(rule, batch, heads, tokens, dims):
    """Returns the arguments of a problem."""
    gates, delta = RULES[rule]
    q, k, v = (torch.randn(batch, tokens, heads, dims, device="cuda").transpose(1, 2) for _ in range(3))
    named = {"rule": ("gated_delta" if gates else "delta") if delta else ("gated" if gates else "linear")}
    if gates:
        named["decay"] = -0.2 * torch.rand((batch, heads, tokens, dims)[: 2 + gates], device="cuda")
    if delta:
        named["beta"] = torch.rand(batch, heads, tokens, device="cuda")
    return (q, torch.nn.functional.normalize(k, dim=-1), v), named


def graph_of(call):
    """Returns a graph of calls, and their number."""
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    count = max(1, min(CALLS, int(GRAPH_US / (1e3 * start.elapsed_time(end)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph, count


def measure(rule, batch, heads, tokens, dims):
    """Returns the times of all forms by name, with the choice as "chosen"."""
    tensors, named = inputs(rule, batch, heads, tokens, dims)
    graphs, expected = {}, elsa.linear_attention(*tensors, **named)
    for form in (None, *FORMS):
        if form and tokens > LIMITS.get(form, tokens):
            continue
        call = lambda form=form: elsa.linear_attention(*tensors, form=form, **named)  # noqa: E731
        try:
            difference = (call() - expected).abs().max().item() / expected.abs().max().item()
        except elsa.Error:
            continue
        if not difference < 1e-4:
            sys.exit(f"{rule}, {heads} heads, {tokens} tokens, {dims} dims: {form} differs by {difference:.1e}")
        graphs[form or "chosen"] = graph_of(call)
    times = {name: [] for name in graphs}
    for _ in range(REPLAYS):
        for name, (graph, count) in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(1e3 * start.elapsed_time(end) / count)
    return {name: statistics.median(taken) for name, taken in times.items()}


def row(name, times):
    """Returns a line of a table, and how much longer the choice takes than the fastest form."""
    forms = {form: time for form, time in times.items() if form != "chosen"}
    best = min(forms, key=forms.get)
    # A choice that is the fastest form differs from it by noise only.
    ratio = times["chosen"] / forms[best]
    others = " ".join(f"{form} {time:.4g}" for form, time in forms.items())
    return f"| {name} | {times['chosen']:.4g} | {best} {forms[best]:.4g} | {ratio:.2f} | {others} |", ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--all", action="store_true", help="list every problem")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--heads", nargs="+", type=int, metavar="N", default=(1, 8, 32, 128))
    parser.add_argument(
        "--tokens", nargs="+", type=int, metavar="N", default=(32, 64, 128, 512, 2048, 16384, 131072, 1048576)
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}\n\n| rule, heads x tokens x dims | choice | fastest | ratio | forms |\n|---|---|---|---|---|", flush=True)
    ratios = []
    for rule in given.rules:
        for dims in (64, 128):
            for heads in given.heads:
                for tokens in given.tokens:
                    if heads * tokens > MOST:
                        continue
                    line, ratio = row(f"{rule}, {heads} x {tokens} x {dims}", measure(rule, 1, heads, tokens, dims))
                    ratios.append(ratio)
                    if given.all or ratio > 1.1:
                        print(line, flush=True)
                    torch.cuda.empty_cache()
    within = sum(ratio <= 1.1 for ratio in ratios)
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    print(f"\n{len(ratios)} problems: {within} within 1.1 of the fastest form, largest ratio {max(ratios):.2f}, geometric mean {mean:.3f}\n")
    print("| rule, batch x heads x tokens x dims | choice | fastest | ratio | forms |\n|---|---|---|---|---|", flush=True)
    for rule in given.rules:
        for batch in (1, 2, 4, 8, 16):
            print(row(f"{rule}, {batch} x 8 x 2048 x 64", measure(rule, batch, 8, 2048, 64))[0], flush=True)


main()
