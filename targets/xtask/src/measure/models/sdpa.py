"""Compares elsa.sdpa with torch's own scaled_dot_product_attention, on one thread of one core: a table in Markdown.

A round times both in alternating order by processor time, each for at least 10 ms. The ratio is the median over
rounds of torch by elsa, with its quartiles. Queries, keys and values are slices of a packed tensor, as in
networks.
"""

import os
import statistics
import time

import torch

import elsa

ROUNDS, LEAST = 25, 0.01
# Batch, heads, tokens, head size, mask, and the source of such a call.
SHAPES = [
    (1, 3, 197, 64, "", "ViT-T at 224"),
    (1, 12, 197, 64, "", "ViT-B at 224"),
    (1, 3, 1025, 64, "", "ViT-T at 512"),
    (1, 12, 577, 64, "", "ViT-B at 384"),
    (64, 3, 49, 32, "", "Swin-T, first blocks"),
    (64, 3, 49, 32, "added, a number for each score", "Swin-T, first blocks"),
    (1, 12, 384, 64, "padding, bool", "BERT"),
    (1, 4, 17, 12, "", "the digits of examples/cpp-vision"),
]


def seconds(function):
    start, runs = time.process_time(), 0
    while True:
        function()
        runs += 1
        taken = time.process_time() - start
        if taken >= LEAST:
            return taken / runs


def main():
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print("| batch, heads, tokens, d | mask | as in | torch, us | elsa, us | ratio (quartiles) | difference |")
    print("|---|---|---|---|---|---|---|")
    with torch.inference_mode():
        for batch, heads, tokens, dim, what, network in SHAPES:
            q, k, v = torch.randn(batch, tokens, 3, heads, dim).permute(2, 0, 3, 1, 4).unbind(0)
            mask = None
            if what.startswith("added"):
                mask = torch.randn(batch, heads, tokens, tokens)
            elif what:
                mask = (torch.arange(tokens) < tokens * 7 // 8)[None, None, None]
            both = [
                lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
                lambda: elsa.sdpa(q, k, v, attn_mask=mask),
            ]
            difference = (both[0]() - both[1]()).abs().max().item()
            times = [[], []]
            for round in range(ROUNDS):
                taken = [0.0, 0.0]
                for i in (0, 1) if round % 2 else (1, 0):
                    taken[i] = seconds(both[i])
                times[0].append(taken[0])
                times[1].append(taken[1])
            low, ratio, high = statistics.quantiles([a / b for a, b in zip(*times)], n=4)
            old, new = [1e6 * statistics.median(x) for x in times]
            shape = f"{batch}, {heads}, {tokens}, {dim}"
            cells = [shape, what or "none", network, f"{old:.0f}", f"{new:.0f}", f"**{ratio:.2f}** ({low:.2f} to {high:.2f})"]
            print(f"| {' | '.join(cells)} | {difference:.1e} |", flush=True)
    print(f"\ntorch {torch.__version__}, elsa {elsa.version()} ({elsa.Engine(threads=1).backend}), {ROUNDS} rounds.")


if __name__ == "__main__":
    main()
