"""Compares networks of torch with and without `elsa.patch()`: a table in Markdown.

`patched.py [--device cuda] [--form FORM] [--threads N] [--rounds N] [WORD ...]` with elsa.py on PYTHONPATH takes the
networks of thirty_networks.py that call torch's attention, and those of `more`, whose names contain every word. Forms are

- `eager`: torch runs each operation when the network calls it,
- `graph`: a CUDA graph replays the network; each side has its own graph,
- `compiled`: torch.compile has compiled the network; each side has its own code.

A round runs each side four times until the device has finished, in alternating order. The first run finds the caches as
the other side has left them and is not timed, because a program does not exchange the function between two runs. Times
are medians over all runs; the ratio is the median over rounds of torch by elsa, with its quartiles. `host` is the time
until the call returns, which on a GPU contains no kernel. Errors are the largest of any output relative to its largest
number, compared with the same network in f64, or with torch's own answer if a network does not run in f64. Products and
convolutions are in f32. Weights are random and let attention matter; MiniLM has its trained ones.

A network that torch itself cannot capture or compile is in the table with the reason. Exit status 1: a ratio below 0.98,
an attention that elsa does not compute, a form of a network that works with torch's function only, an error that is more
than four times torch's and more than 1e-5, or no network at all if no WORD selects networks.
"""

import argparse
import contextlib
import gc
import statistics
import time
import warnings

import torch

import compare
import elsa
import export
from networks import Call, Network, clip, named, picture
from thirty_networks import by_name, of_transformers, thirty, vision

# Number of timed runs in a turn, of rounds that are not timed, and of runs that prepare a side.
TIMED, WARM, FIRST = 3, 3, 4


def more():
    """Returns further networks, in the form of `thirty`."""
    mae = of_transformers("ViTMAEModel", "ViTMAEConfig", ["pixel_values", "noise"], ["last_hidden_state"])
    # The noise decides which patches the encoder keeps.
    patches = lambda: {"pixels": torch.randn(1, 3, 224, 224), "noise": torch.rand(1, 196)}
    dino = {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518}
    text = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    image = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24}
    large = clip(12, 4096, text, {**image, "patch_size": 14}, 768)
    qwen2 = of_transformers(
        "Qwen2ForCausalLM", "Qwen2Config", ["input_ids"], ["logits"], hidden_size=896, intermediate_size=4864,
        num_attention_heads=14, num_key_value_heads=2, num_hidden_layers=2, vocab_size=4096, use_cache=False,
    )  # fmt: skip
    return {
        "ViT-MAE-B": {"vit_mae": Network(mae, patches, 12)},
        "ViT-B/16 x 8": {"vit_b_8": Network(by_name("vit_base_patch16_224"), picture(224, 8), 12)},
        "DINOv2-S, 518": {
            "dinov2_s_518": Network(
                vision("Dinov2Model", "Dinov2Config", ["last_hidden_state"], **dino), picture(518), 12
            )
        },
        "CLIP-L/14, both towers": {"clip_l": Network(*large, 36)},
        "Qwen2-like, 256 tokens": {"qwen2": Network(qwen2, lambda: {"ids": torch.randint(3, 4096, (1, 256))}, 2)},
    }


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
        run()
    finally:
        functional.scaled_dot_product_attention = function
    return calls[0]


def prepared(form, net, inputs, whole):
    """Returns a function that runs the network in a form, after `FIRST` runs. A compiled network is one graph if `whole` is
    set."""
    run = lambda: net(*inputs)
    if form == "compiled":
        # The compiler keeps its results with the code of a function; this network has code of its own.
        own = Call(net, lambda net, *inputs: net(*inputs), [f"x{i}" for i in range(len(inputs))])
        compiled = torch.compile(own, fullgraph=whole)
        run = lambda: compiled(*inputs)
    stream = torch.cuda.Stream() if form == "graph" else None
    if stream:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
        for _ in range(FIRST - bool(stream)):
            run()
        if not stream:
            return run
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                found = run()
        except Exception as error:
            # The end of a capture that has failed raises another exception than the first.
            raise error.__context__ or error

    def replay():
        graph.replay()
        return found

    return replay


class Refused(Exception):
    """Torch itself cannot capture or compile the network."""


def both(form, net, inputs, blocks):
    """Returns for each side, whose block is in `blocks`, a function that runs the network, and whether it is one graph."""
    whole, run = True, None
    with blocks[0]:
        while run is None:
            try:
                run = prepared(form, net, inputs, whole)
            except Exception as error:  # what torch cannot capture or compile is no fault of elsa
                if form == "eager":
                    raise
                if form == "graph" or not whole:
                    raise Refused(words(error)) from error
                whole = False
    with blocks[1]:
        return (run, prepared(form, net, inputs, whole)), whole


def words(error):
    """Returns the type and the first line of an exception."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:160]


def measure(network, device, form, rounds):
    """Returns the seconds of both sides and of their hosts in every timed run, the number of attentions of torch and of elsa
    in a run, the errors of both, and whether both are one graph; None if the network does not call torch's attention."""
    torch.manual_seed(export.SEED)
    net, inputs = network.make(True).eval(), tuple(network.inputs().values())
    if not network.trained:
        export.waken(net, *inputs)
    net, inputs = net.to(device), [x.to(device) for x in inputs]
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    attentions = counted(lambda: net(*inputs))
    if attentions == 0:
        return None
    wanted, _ = export.double(net, inputs)
    times, hosts, found = [[], []], [[], []], [None, None]
    blocks = contextlib.nullcontext(), elsa.patch()
    sides, whole = both(form, net, inputs, blocks)
    for round in range(-WARM, rounds):
        for way in (0, 1) if round % 2 else (1, 0):
            runs = []
            with blocks[way]:
                for _ in range(1 + TIMED):
                    finish()
                    start = time.perf_counter()
                    found[way] = sides[way]()
                    host = time.perf_counter() - start
                    finish()
                    runs.append((time.perf_counter() - start, host))
            if round >= 0:
                times[way] += [taken for taken, _ in runs[1:]]
                hosts[way] += [host for _, host in runs[1:]]
    # A graph calls no function when it is replayed.
    calls = blocks[1].calls / (FIRST + (WARM + rounds) * (1 + TIMED) * (form != "graph"))
    arrays = lambda found: [x.cpu().numpy() for x in tensors(found)]
    errors = [compare.error(arrays(answer), arrays(wanted)) for answer in found]
    return times, hosts, (attentions, calls), errors, whole


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--form", default="eager", choices=["eager", "graph", "compiled"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args()
    if options.form == "graph" and options.device != "cuda":
        parser.error("--form graph: needs --device cuda")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = False
    columns = ["network", "attentions", "torch, ms", "elsa, ms", "ratio (quartiles)", "torch, host ms", "elsa, host ms"]
    columns += ["error, torch", "elsa"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    faults, ran = [], 0
    chosen = [
        (title if len(parts) == 1 else f"{title}: {name}", name, network)
        for title, parts in {**more(), **thirty()}.items()
        for name, network in parts.items()
        if getattr(network, "fuses", False) and all(word in name for word in options.words)
    ]
    for title, name, network in chosen:
        row = lambda *cells: print(f"| {' | '.join([title, *cells] + [''] * (len(columns) - 1 - len(cells)))} |", flush=True)
        try:
            with torch.inference_mode():
                measured = measure(network, options.device, options.form, options.rounds)
        except (ImportError, Refused) as error:
            row(str(error))
            continue
        except Exception as error:  # the other networks are still measured
            row("does not run")
            faults.append(f"{name}: {words(error)}")
            continue
        finally:
            # In the other forms this would import the compiler, with which a patch replaces torch's function in another way.
            if options.form == "compiled":
                torch.compiler.reset()
            gc.collect()
        if measured is None:
            continue
        ran += 1
        times, hosts, (attentions, calls), errors, whole = measured
        turns = [[statistics.median(x[n : n + TIMED]) for n in range(0, len(x), TIMED)] for x in times]
        low, ratio, high = statistics.quantiles([a / b for a, b in zip(*turns)], n=4)
        ms = [f"{1e3 * statistics.median(x):.2f}" for x in times + hosts]
        count = f"{calls:g}" + ("" if whole else ", several graphs")
        row(count, *ms[:2], f"**{ratio:.2f}** ({low:.2f} to {high:.2f})", *ms[2:], *(f"{x:.1e}" for x in errors))
        if not ratio >= compare.SLOWEST:
            faults.append(f"{name}: {ratio:.3f}; allowed: at least {compare.SLOWEST}")
        if calls != attentions:
            faults.append(f"{name}: {calls:g} of {attentions} attentions")
        if not compare.right(errors):
            faults.append(f"{name}: error {errors[1]:.1e}, torch {errors[0]:.1e}")
    if not chosen:
        print(f"No network's name has {' and '.join(options.words)}.")
    if not ran and not options.words:
        faults.append("torch runs no network in this form")
    about = f"{options.form}, {options.device}, {options.threads} threads, {options.rounds} rounds"
    print(f"\ntorch {torch.__version__}, elsa {elsa.version()}, {about}.")
    for line in faults:
        print(f"failed: {line}")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
