"""Compares networks that torch runs eagerly with and without `elsa.patch()`: a table in Markdown.

`eager.py [--device cuda] [--threads N] [--rounds N] [WORD ...]` with elsa.py on PYTHONPATH takes the networks of
thirty_networks.py that call torch's attention, and ViT-MAE, whose names contain every word. In a round, each of both in
alternating order runs four times until the device has finished. The first run finds the caches as the other has left
them and is not timed, because a program does not exchange the function between two runs. Times are medians over all
runs; the ratio is the median over rounds of torch by elsa, with its quartiles. `host` is the time until the call returns, which on a GPU contains no kernel. The difference is the largest of any
output, relative to the largest number of that output.

Exit status 1: a ratio below 0.98, an attention that elsa does not compute, or a difference above 1e-3.
"""

import argparse
import statistics
import time

import torch

import elsa
from networks import Network, named
from thirty_networks import thirty

LEAST, LARGEST = 0.98, 1e-3
# Number of timed runs in a turn.
TIMED = 3


def vit_mae(fused):
    """Returns the encoder of ViT-MAE. Its second input decides which patches it keeps."""
    from transformers import ViTMAEConfig, ViTMAEModel

    config = ViTMAEConfig()
    config._attn_implementation = "sdpa" if fused else "eager"
    return named(ViTMAEModel(config), ["pixel_values", "noise"], ["last_hidden_state"])


def networks():
    """Yields titles, names and networks."""
    yield "ViT-MAE-B", "vit_mae", Network(
        vit_mae, lambda: {"pixels": torch.randn(1, 3, 224, 224), "noise": torch.rand(1, 196)}, 12
    )
    for title, parts in thirty().items():
        for name, network in parts.items():
            if getattr(network, "fuses", False):
                yield title, name, network


def tensors(found):
    """Returns the tensors of a result."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [x for part in (found.values() if isinstance(found, dict) else found or ()) for x in tensors(part)]


def counted(run):
    """Returns the number of calls of torch's attention in a run."""
    functional, calls = torch.nn.functional, [0]
    function = functional.scaled_dot_product_attention

    def counting(*arguments, **named):
        calls[0] += 1
        return function(*arguments, **named)

    functional.scaled_dot_product_attention = counting
    try:
        with torch.inference_mode():
            run()
    finally:
        functional.scaled_dot_product_attention = function
    return calls[0]


def compare(network, device, rounds):
    """Returns the seconds of both and of their hosts in every timed run, the number of attentions of torch and of elsa in a run,
    and the largest difference; None if the network does not call torch's attention."""
    torch.manual_seed(1)
    net = network.make(True).eval().to(device)
    inputs = [x.to(device) for x in network.inputs().values()]
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    times, hosts, found = [[], []], [[], []], [None, None]
    attentions = counted(lambda: net(*inputs))
    if attentions == 0:
        return None
    with torch.inference_mode():
        for round in range(-3, rounds):
            for way in (0, 1) if round % 2 else (1, 0):
                patched = elsa.patch()
                if way:
                    patched.__enter__()
                try:
                    runs = []
                    for _ in range(1 + TIMED):
                        finish()
                        start = time.perf_counter()
                        found[way] = net(*inputs)
                        host = time.perf_counter() - start
                        finish()
                        runs.append((time.perf_counter() - start, host))
                finally:
                    if way:
                        patched.__exit__()
                if round >= 0:
                    times[way] += [taken for taken, _ in runs[1:]]
                    hosts[way] += [host for _, host in runs[1:]]
                if way:
                    calls = patched.calls // (1 + TIMED)
    difference = max(
        float((x.double() - y.double()).abs().max() / x.double().abs().max()) for x, y in zip(*map(tensors, found))
    )
    return times, hosts, (attentions, calls), difference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(options.threads)
    print("| network | attentions | torch, ms | elsa, ms | ratio (quartiles) | torch, host ms | elsa, host ms | difference |")
    print("|---|---|---|---|---|---|---|---|")
    faults = []
    for title, name, network in networks():
        if not all(word in name for word in options.words):
            continue
        try:
            compared = compare(network, options.device, options.rounds)
        except ImportError as error:
            print(f"| {title} | {error} | | | | | | |")
            continue
        if compared is None:
            continue
        times, hosts, (attentions, calls), difference = compared
        turns = [[statistics.median(x[n : n + TIMED]) for n in range(0, len(x), TIMED)] for x in times]
        low, ratio, high = statistics.quantiles([a / b for a, b in zip(*turns)], n=4)
        ms = [f"{1e3 * statistics.median(x):.2f}" for x in times + hosts]
        cells = [title, calls, *ms[:2], f"**{ratio:.2f}** ({low:.2f} to {high:.2f})", *ms[2:], f"{difference:.1e}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if not ratio >= LEAST:
            faults.append(f"{name}: {ratio:.3f}; allowed: at least {LEAST}")
        if calls != attentions or not difference <= LARGEST:
            faults.append(f"{name}: {calls} of {attentions} attentions, difference {difference:.1e}")
    print(f"\ntorch {torch.__version__}, elsa {elsa.version()}, {options.device}, {options.rounds} rounds.")
    for line in faults:
        print(f"failed: {line}")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
