"""Attention on this machine's GPU compared with PyTorch, in one process: device times, ratios, peak memory and errors.

    python3 gpu_bench.py [--only TEXT] [--seconds X] [--out FOLDER]

Every cell is a call captured as a CUDA graph of several calls and replayed. Ours and each peer's alternate, so that a
slowdown of the machine affects all of them. A call that cannot be captured is timed by events around it, and its cell
records that. The ratio is the median over the rounds of peer's time / ours. FP32 peers run with allow_tf32 off.
PyTorch's kernel `efficient` nevertheless uses Tensor Cores: it computes each FP32 product as three TF32 products. Ours uses them
only in the cells "tensor cores", which also have our times with f32 products and, for f32, with one f16 product.
The peak memory of a call is what PyTorch's allocator holds at most, without inputs and output. Our workspace counts.
Prints a JSON line for each cell, and writes gpu-bench.jsonl and gpu-bench.md. ELSA_LIBRARY names another libelsa.so.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings

os.environ.setdefault("ELSA_LIBRARY", os.path.join(os.path.dirname(os.path.realpath(__file__)), "libelsa.so.1"))
import elsa  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as functional  # noqa: E402

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
# The reason why a backend refuses a cell, a warning of PyTorch, is in the cell's "failed".
warnings.filterwarnings("ignore", category=UserWarning)


# Our method without Tensor Cores, and with one f16 product.
PRODUCTS, ONE = "elsa, f32 products", "elsa, one f16 product"


class Cell:
    """A problem: batch, heads, key heads, queries, keys, dim, type, and options."""

    def __init__(
        self, name, batch, heads, queries, dim, keys=None, kv_heads=None, dtype="float32", causal=False, bias=False, cores=False
    ):
        self.name, self.batch, self.heads, self.queries, self.dim = name, batch, heads, queries, dim
        self.keys, self.kv_heads = keys or queries, kv_heads or heads
        self.dtype, self.causal, self.bias, self.cores = getattr(torch, dtype), causal, bias, cores

    def ours(self, **more):
        """Returns the options of our call."""
        options = {"causal": self.causal, "bias": self.bias if torch.is_tensor(self.bias) else None}
        if self.cores:
            options["tensor_cores"] = "always"
        return dict(options, **more)

    def flops(self):
        """Returns the operations of both products; a causal call needs half of them."""
        scores = self.batch * self.heads * self.queries * self.keys
        return 4.0 * scores * self.dim * (0.5 if self.causal else 1.0)

    def cache_bytes(self):
        """Returns the bytes of keys and values."""
        return 2 * self.batch * self.kv_heads * self.keys * self.dim * (2 if self.dtype is torch.float16 else 4)


def cells():
    """Returns the cells: long sequences, sequences of vision models, every head size, causal masks, decoding, Tensor Cores."""
    for n in (1024, 2048, 4096, 8192, 16384):
        yield Cell("long", 1, 8, n, 64)
    for n in (64, 100, 144, 196, 256, 576, 900):
        yield Cell("one head", 1, 1, n, 64)
    for n in (196, 900):
        yield Cell("12 heads", 1, 12, n, 64)
    yield Cell("ViT-B/16", 8, 12, 197, 64)
    yield Cell("VGGT frame", 1, 16, 1041, 64)
    for d in (32, 80, 96, 128, 256):
        yield Cell("head size", 1, 8, 4096, d)
    for n in (1024, 4096):
        yield Cell("causal", 1, 8, n, 64, causal=True)
    yield Cell("decode", 1, 32, 1, 128, keys=4096)
    yield Cell("decode, shared keys", 1, 32, 1, 128, keys=4096, kv_heads=8)
    yield Cell("decode, shared keys", 1, 32, 1, 128, keys=65536, kv_heads=8)
    yield Cell("decode, shared keys", 1, 32, 1, 128, keys=4096, kv_heads=8, dtype="float16")
    for n in (1024, 4096, 16384):
        yield Cell("half inputs", 1, 8, n, 64, dtype="float16")
    name = "tensor cores"
    for dtype in ("float32", "float16"):
        for d in (64, 128, 256):
            for n in (1024, 4096, 16384):
                yield Cell(name, 1, 8, n, d, dtype=dtype, cores=True)
    for d in (32, 80, 96):
        yield Cell(name, 1, 8, 4096, d, cores=True)
    yield Cell(name + ", causal", 1, 8, 4096, 64, causal=True, cores=True)
    yield Cell(name + ", ViT-B/16", 1, 12, 197, 64, cores=True)
    yield Cell(name + ", ViT-B/16", 8, 12, 197, 64, cores=True)
    yield Cell(name + ", VGGT frame", 1, 16, 1041, 64, cores=True)
    yield Cell(name + ", DINOv2", 1, 16, 1370, 64, cores=True)
    yield Cell(name + ", SAM with bias", 1, 12, 4096, 64, bias=True, cores=True)


def tensors(cell):
    torch.manual_seed(1)

    def make(heads, tokens):
        shape = (cell.batch, heads, tokens, cell.dim)
        return torch.randn(*shape, device="cuda", dtype=torch.float32).to(cell.dtype)

    if cell.bias:
        cell.bias = torch.randn(1, cell.heads, cell.queries, cell.keys, device="cuda", dtype=cell.dtype)
    return make(cell.heads, cell.queries), make(cell.kv_heads, cell.keys), make(cell.kv_heads, cell.keys)


def truth(cell, q, k, v):
    """Returns the indices of evenly spaced rows of the last head, and their outputs in f64."""
    rows = torch.arange(0, cell.queries, max(1, cell.queries // 64), device="cuda")
    query, group = q[-1, -1, rows].double(), -1
    scores = query @ k[-1, group].double().T / math.sqrt(cell.dim)
    if torch.is_tensor(cell.bias):
        scores += cell.bias[-1, -1, rows].double()
    if cell.causal:
        scores.masked_fill_(torch.arange(cell.keys, device="cuda")[None, :] > rows[:, None], -math.inf)
    return rows, torch.softmax(scores, -1) @ v[-1, group].double()


def products(cell, q, k, v):
    """Returns attention by products and a softmax, for PyTorch before 2.3."""
    group = cell.heads // cell.kv_heads
    keys, values = k.repeat_interleave(group, 1).transpose(-1, -2), v.repeat_interleave(group, 1)
    hidden = torch.ones(cell.queries, cell.keys, dtype=torch.bool, device="cuda").triu(1) if cell.causal else None

    def call():
        scores = torch.matmul(q / math.sqrt(cell.dim), keys)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        return torch.matmul(torch.softmax(scores, -1), values)

    return call


def methods(cell, q, k, v):
    """Returns our method and PyTorch's methods for these tensors, by name."""
    out = torch.empty_like(q)
    found = {"elsa": lambda: elsa.attention(q, k, v, out=out, **cell.ours())}
    if cell.cores:
        found[PRODUCTS] = lambda: elsa.attention(q, k, v, out=out, **cell.ours(tensor_cores=False))
        if cell.dtype is torch.float32 and not torch.is_tensor(cell.bias) and cell.dim in (64, 128, 256):
            found[ONE] = lambda: elsa.attention(q, k, v, out=out, **cell.ours(tensor_cores="f16"))
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        found["products"] = products(cell, q, k, v)
        return found
    grouped = {"enable_gqa": True} if cell.kv_heads != cell.heads else {}
    added = {"attn_mask": cell.bias} if torch.is_tensor(cell.bias) else {}
    backends = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    if cell.dtype is not torch.float32:
        backends.update(flash=SDPBackend.FLASH_ATTENTION, cudnn=SDPBackend.CUDNN_ATTENTION)
    if cell.batch * cell.heads * cell.queries * cell.keys * 4 > 20e9:
        del backends["math"]

    def peer(backend):
        def call():
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=cell.causal, **grouped, **added)

        return call

    found.update({name: peer(backend) for name, backend in backends.items()})
    return found


def peak_bytes(call):
    """Returns the bytes of device memory that a call holds at most in addition to its inputs and its output."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    answer = call()
    torch.cuda.synchronize()
    return max(0, torch.cuda.max_memory_allocated() - before - answer.numel() * answer.element_size())


class Timer:
    """Times one method: a graph of several calls, or the calls themselves."""

    def __init__(self, call):
        self.call, self.graph, self.count = call, None, 1
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.count = max(1, min(20, int(0.3 / self.ms())))
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(self.count):
                    call()
            self.graph = graph
            self.ms()
        except RuntimeError:
            torch.cuda.synchronize()
            self.graph = None

    def ms(self):
        """Returns the device milliseconds of one call."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        if self.graph is not None:
            self.graph.replay()
        else:
            for _ in range(self.count):
                self.call()
        end.record()
        end.synchronize()
        return max(start.elapsed_time(end) / self.count, 1e-6)


def quartiles(values):
    """Returns the quartiles, with linear interpolation."""
    ordered = sorted(values)

    def at(part):
        low = int(part * (len(ordered) - 1))
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (part * (len(ordered) - 1) - low) * (ordered[high] - ordered[low])

    return [at(0.25), at(0.5), at(0.75)]


def measure(cell, seconds):
    q, k, v = tensors(cell)
    rows, wanted = truth(cell, q, k, v)
    timers, errors, peaks, failed = {}, {}, {}, {}
    # Calls of an engine keep its workspace. That of a new engine is allocated in the call whose memory is measured.
    alone = {"elsa": lambda: elsa.attention(q, k, v, engine=elsa.Engine("cuda"), **cell.ours())}
    for name, call in methods(cell, q, k, v).items():
        try:
            answer = call()[-1, -1, rows].double()
            # PyTorch keeps the workspaces of its libraries after the first call.
            peaks[name] = peak_bytes(alone.get(name, call))
            timers[name] = Timer(call)
            errors[name] = ((answer - wanted).norm() / wanted.norm()).item()
        except (RuntimeError, ValueError, TypeError) as error:
            failed[name] = str(error).splitlines()[0][:120]
            torch.cuda.synchronize()
    if "elsa" not in timers:
        raise SystemExit(f"elsa: {failed['elsa']}")
    times = {name: [] for name in timers}
    end, order = time.monotonic() + seconds, list(timers)
    while time.monotonic() < end or len(times["elsa"]) < 9:
        for name in order:
            times[name].append(timers[name].ms())
        order.reverse()
    low, middle, high = quartiles(times["elsa"])
    found = {
        "what": "gpu-bench", "name": cell.name, "batch": cell.batch, "heads": cell.heads, "kv_heads": cell.kv_heads,
        "queries": cell.queries, "keys": cell.keys, "d": cell.dim, "dtype": str(cell.dtype)[6:], "causal": cell.causal,
        "turns": len(times["elsa"]), "ms": [low, middle, high],
        "by": "graph" if timers["elsa"].graph is not None else "events",
        "tflops": cell.flops() / middle / 1e9, "cache_tbs": cell.cache_bytes() / middle / 1e9,
        "rel_l2": errors["elsa"], "peak_bytes": peaks["elsa"], "peers": {}, "failed": failed,
    }  # fmt: skip
    for name in times:
        if name != "elsa":
            ratios = [peer / ours for peer, ours in zip(times[name], times["elsa"])]
            found["peers"][name] = {
                "ms": quartiles(times[name])[1], "ratio": quartiles(ratios), "rel_l2": errors[name],
                "by": "graph" if timers[name].graph is not None else "events", "peak_bytes": peaks[name],
            }  # fmt: skip
    peers = found["peers"]
    others = [name for name in peers if name not in (PRODUCTS, ONE)]
    found["best"] = min(others, key=lambda name: peers[name]["ms"]) if others else None
    if not found["rel_l2"] <= 1e-2:
        raise SystemExit(f"{cell.name}: {found['rel_l2']} from the truth")
    return found


def line(found):
    shape = f"{found['batch']}, {found['heads']}"
    if found["kv_heads"] != found["heads"]:
        shape += f" sharing {found['kv_heads']}"
    tokens = str(found["queries"]) if found["queries"] == found["keys"] else f"{found['queries']} x {found['keys']}"
    shape += f", {tokens}, {found['d']}"
    kind = found["name"] + (", f16" if found["dtype"] == "float16" else "")
    speed = f"{found['cache_tbs']:.2f} TB/s" if found["queries"] == 1 else f"{found['tflops']:.1f} TFLOP/s"
    best = found["peers"].get(found["best"])
    peer = "| |" if best is None else (
        f"{found['best']} {1e3 * best['ms']:.1f} | **{best['ratio'][1]:.2f}** ({best['ratio'][0]:.2f} to {best['ratio'][2]:.2f})"
    )
    own, one = (found["peers"].get(name) for name in (PRODUCTS, ONE))
    low, middle, high = (1e3 * x for x in found["ms"])
    memory = f"{found['peak_bytes'] / 1e6:.2f}" + ("" if best is None else f", {best['peak_bytes'] / 1e6:.2f}")
    return (
        f"| {kind} | {shape} | {middle:.1f} ({low:.1f} to {high:.1f}) | {speed} | {peer} | {memory} "
        f"| {found['rel_l2']:.1e}{'' if best is None else ', %.1e' % best['rel_l2']} "
        f"| {'%.2f' % own['ratio'][1] if own else ''} | {'%.2f, %.1e' % (one['ratio'][1], one['rel_l2']) if one else ''} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for a cell")
    parser.add_argument("--out", default=".", help="folder of the results")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU")
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        device = subprocess.check_output(query, universal_newlines=True, timeout=60).splitlines()[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        device = torch.cuda.get_device_name()
    today = time.strftime("%Y-%m-%d")
    table = [
        f"{device}, {today}, PyTorch {torch.__version__}, elsa {elsa.version()}; medians and quartiles in µs",
        "",
        "| cell | batch, heads, tokens, d | µs | speed | best peer, µs | peer / elsa | peak MB: elsa, peer | error: elsa, peer "
        "| f32 products / elsa | one f16 product: time / elsa, error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines = []
    for cell in cells():
        if arguments.only not in cell.name:
            continue
        found = measure(cell, arguments.seconds)
        lines.append(json.dumps(found))
        print(lines[-1], flush=True)
        table.append(line(found))
        print(table[-1], file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    for name, content in (("gpu-bench.jsonl", lines), ("gpu-bench.md", table)):
        with open(os.path.join(arguments.out, name), "w", encoding="utf-8") as file:
            file.write("\n".join(content) + "\n")


if __name__ == "__main__":
    main()
