"""elsa.distributed by processes over gloo on the CPU, compared with attention in f64, and with one process bit by bit.

`python3 test_distributed.py` with elsa.py on PYTHONPATH, with torch 2; without torch the tests are skipped.
"""

import math
import multiprocessing
import os
import tempfile
import time
import unittest

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise unittest.SkipTest("torch is not installed")

if not dist.is_available() or not dist.is_gloo_available():
    raise unittest.SkipTest("this torch has no gloo")

import elsa
import elsa.distributed as ring

# Largest error of an f32 answer over values of size 1, as in test_torch.py.
LIMITS = {torch.float32: 5e-6, torch.float16: 2e-3}
UNEVEN = [13, 0, 30, 1, 9, 22, 5, 21]


def case(seed, tokens=101, heads=4, kv_heads=4, batch=1, dim=16, dtype=torch.float32, chunks=8, **options):
    """Returns the tensors of all tokens, and the options of a call."""
    random = torch.Generator().manual_seed(seed)
    make = lambda count, width: torch.randn(batch, count, tokens, width, generator=random).to(dtype)
    return (make(heads, dim) * 3, make(kv_heads, dim), make(kv_heads, dim + 4)), dict(options, chunks=chunks)


def added(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "plain": case(1),
    "causal": case(2, causal=True),
    "causal, zigzag": case(3, causal=True, order="zigzag"),
    "zigzag of uneven chunks": case(4, causal=True, order="zigzag", chunks=UNEVEN),
    "narrow window": case(5, window=(3, 2), order="zigzag"),
    "window behind the diagonal": case(6, window=(40, 0), causal=True),
    "left side only": case(7, window=(17, None)),
    "right side only": case(8, window=(-1, 26), order="zigzag"),
    "lengths": case(9, batch=3, key_lengths=[101, 50, 0], causal=True, order="zigzag"),
    "grouped heads": case(10, kv_heads=2, causal=True, scale=0.3, softcap=5.0),
    "mask of rows": case(11, mask=added((1, 4, 101, 101), 1) > 0.3, order="zigzag"),
    "bias of keys": case(12, bias=added((101,), 2) * 4, causal=True),
    "f16": case(13, dtype=torch.float16, causal=True, order="zigzag"),
    "fewer tokens than chunks": case(14, tokens=5, causal=True, order="zigzag"),
    "no tokens": case(15, tokens=0),
    "large scores": case(16, scale=40.0, causal=True, order="zigzag"),
}
# The last queries of a sequence over all keys.
DECODES = {
    "one query": (case(21), 1),
    "causal queries": (case(22, causal=True, kv_heads=1), 7),
    "window": (case(23, window=(25, 0), order="zigzag"), 3),
    "lengths": (case(24, batch=2, key_lengths=[9, 0]), 1),
    "mask": (case(25, mask=added((1, 1, 1, 101), 3) > 0), 2),
}


def exact(q, k, v, first=0, mask=None, bias=None, scale=None, softcap=0.0, causal=False, window=None, key_lengths=None, **_):
    """Returns the answer in f64. `first` is the position of the first query."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if bias is None else scores + bias.double()
    rows, keys = first + torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    seen = torch.ones(q.shape[0], q.shape[1], q.shape[2], k.shape[2], dtype=torch.bool)
    seen = seen if mask is None else seen & mask
    seen = seen & (keys <= rows) if causal else seen
    for side, number in zip((-1, 1), window or (None, None)):
        if number is not None and number != -1:
            seen = seen & ((keys - rows) * side <= number)
    if key_lengths is not None:
        seen = seen & (keys < torch.tensor(key_lengths)[:, None, None, None])
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.where(seen.any(-1, keepdim=True), scores.softmax(-1), torch.zeros(())).nan_to_num(0.0) @ v


def shard(tensors, options, rank, ranks):
    """Returns the tensors and options of a rank, and its positions."""
    here = ring.positions(tensors[0].shape[2], rank, ranks, options.get("order", "contiguous"), options["chunks"])
    options = dict(options)
    for name in ("mask", "bias"):
        if name in options and options[name].dim() > 1 and options[name].shape[-2] > 1:
            options[name] = options[name][..., here, :]
    return [x[:, :, here] for x in tensors], options, here


def answers(rank, ranks):
    """Computes all cases. Returns the positions, the output and the log-sum-exp of each."""
    found = {}
    engine = elsa.Engine(threads=1)
    for name, (tensors, options) in CASES.items():
        local, options, here = shard(tensors, options, rank, ranks)
        found[name] = (here,) + ring.ring_attention(*local, lse=True, engine=engine, **options)
    for name, ((tensors, options), queries) in DECODES.items():
        local, _, _ = shard(tensors, {n: x for n, x in options.items() if n != "mask"}, rank, ranks)
        q = tensors[0][:, :, -queries:]
        found["decode, " + name] = (None,) + ring.reduce_attention(q, *local[1:], lse=True, engine=engine, **options)
    return found


def told(function, *arguments, **options):
    """Returns the class and the message of the error that a call raises, and the seconds until then."""
    start = time.monotonic()
    try:
        function(*arguments, **options)
    except elsa.ElsaError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "none", "", time.monotonic() - start


def disagreements(rank, ranks):
    """Calls whose arguments differ on rank 1. A correct call follows each of them."""
    x = torch.ones(1, 2, 8, 4)
    odd = rank == 1
    calls = {
        "causal": lambda: ring.ring_attention(x, x, x, causal=odd),
        "window": lambda: ring.ring_attention(x, x, x, window=(1, 1 + odd)),
        "order": lambda: ring.ring_attention(x, x, x, order="zigzag" if odd else "contiguous", chunks=8),
        "chunks": lambda: ring.ring_attention(x, x, x, chunks=8 + 8 * odd),
        "dtype": lambda: ring.ring_attention(*[x.half() if odd else x] * 3),
        "dim": lambda: ring.ring_attention(*[x[..., : 4 - odd]] * 3),
        "scale": lambda: ring.ring_attention(x, x, x, scale=0.5 + odd),
        "key_lengths": lambda: ring.ring_attention(x, x, x, key_lengths=[8 + odd]),
        "function": lambda: (ring.reduce_attention if odd else ring.ring_attention)(x, x, x),
        "refused": lambda: ring.ring_attention(x[0] if odd else x, x, x),
        "gradients": lambda: ring.ring_attention(x.clone().requires_grad_(odd), x, x),
        "shards": lambda: ring.ring_attention(*[x[:, :, : 8 - odd]] * 3, chunks=ranks),
        "mask": lambda: ring.ring_attention(x, x, x, mask=torch.ones(8, 8 * ranks - odd)),
        "q": lambda: ring.reduce_attention(x[:, :, :1] + odd, x, x),
    }
    found = {}
    for name, call in calls.items():
        found[name] = told(call)
        right = ring.ring_attention(x, x, x)
        found[name] += (bool(torch.equal(right, x)),)
    return found


def patched(rank, ranks):
    """Attention by torch's function under a device mesh."""
    mesh = dist.init_device_mesh("cpu", (ranks,), mesh_dim_names=("sequence",))
    tensors, _ = case(31, kv_heads=2)
    here = ring.positions(101, rank, ranks, "zigzag", 8)
    q, k, v = [x[:, :, here] for x in tensors]
    function = torch.nn.functional.scaled_dot_product_attention
    with ring.patch(mesh, "sequence", order="zigzag", chunks=8) as block:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        refused = told(torch.nn.functional.scaled_dot_product_attention, q, k, v)
    assert torch.nn.functional.scaled_dot_product_attention is function and block.calls == 1
    return here, out, refused


def lost(rank, ranks):
    """Rank 1 ends before the second call."""
    x = torch.ones(1, 2, 8, 4)
    ring.ring_attention(x, x, x)
    if rank == 1:
        os._exit(0)
    return told(ring.ring_attention, x, x, x, timeout=5)


def late(rank, ranks):
    """Rank 1 does not call the function."""
    x = torch.ones(1, 2, 8, 4)
    ring.ring_attention(x, x, x)
    if rank == 1:
        time.sleep(8)
        return None
    return told(ring.reduce_attention, x, x, x, timeout=2)


def work(function, rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    found = globals()[function](rank, ranks)
    torch.save(found, f"{folder}/{rank}.part")
    os.replace(f"{folder}/{rank}.part", f"{folder}/{rank}")
    # A group that lost a rank cannot be closed.
    if function not in ("lost", "late"):
        dist.barrier()
        dist.destroy_process_group()
    os._exit(0)


def run(function, ranks):
    """Returns what the function returns on every rank, None for a rank without an answer."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [spawn.Process(target=work, args=(function.__name__, rank, ranks, folder)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
            if process.is_alive():
                process.kill()
                process.join()
        paths = [os.path.join(folder, str(rank)) for rank in range(ranks)]
        return [torch.load(path, weights_only=False) if os.path.exists(path) else None for path in paths]


class Distributed(unittest.TestCase):
    def near(self, found, wanted, limit):
        self.assertEqual(tuple(found.shape), tuple(wanted.shape))
        worst = (found.double() - wanted).abs().max().item() if wanted.numel() else 0.0
        size = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
        self.assertTrue(worst <= limit * size, worst)

    def test_answers_and_bits_for_one_two_and_four_processes(self):
        one = run(answers, 1)[0]
        whole = {}
        for name, (tensors, options) in CASES.items():
            here, out, logs = one[name]
            order = torch.tensor(here, dtype=torch.long).argsort()
            whole[name] = out[:, :, order], logs[:, :, order]
            # Scores up to some hundreds add their own rounding to the weights.
            limit = LIMITS[out.dtype] * (40 if name == "large scores" else 1)
            with self.subTest(name):
                self.near(whole[name][0], exact(*tensors, **options), limit)
        for name, ((tensors, options), queries) in DECODES.items():
            _, out, logs = one["decode, " + name]
            wanted = exact(tensors[0][:, :, -queries:], *tensors[1:], first=101 - queries, **options)
            with self.subTest("decode, " + name):
                self.near(out, wanted, LIMITS[out.dtype])
        for ranks in (2, 4):
            several = run(answers, ranks)
            for name in one:
                for rank, found in enumerate(several):
                    with self.subTest(name, ranks=ranks, rank=rank):
                        here, out, logs = found[name]
                        wanted = one[name][1:] if here is None else [x[:, :, here] for x in whole[name]]
                        for x, y in zip((out, logs), wanted):
                            self.assertEqual(x.contiguous().numpy().tobytes(), y.contiguous().numpy().tobytes())

    def test_ranks_that_disagree_all_raise(self):
        found = run(disagreements, 2)
        own = {"gradients": "UnsupportedError"}
        starts = {"causal": "window and causal", "window": "window and causal", "refused": "", "gradients": "", "shards": "k"}
        for rank in range(2):
            for name, (kind, message, seconds, right) in found[rank].items():
                with self.subTest(name, rank=rank):
                    self.assertEqual(kind, own.get(name, "ArgumentError") if rank == 1 else "ArgumentError", message)
                    self.assertTrue(message.startswith(starts.get(name, "")), message)
                    self.assertIn("; allowed: ", message)
                    self.assertTrue(right)
        self.assertTrue(found[0]["refused"][1].startswith("rank 1: q: [2, 8, 4]"), found[0]["refused"])
        self.assertTrue(found[0]["gradients"][1].startswith("rank 1: q: requires gradients"), found[0]["gradients"])

    def test_torchs_function_under_a_device_mesh(self):
        tensors, _ = case(31, kv_heads=2)
        wanted = exact(*tensors, causal=True)
        for here, out, refused in run(patched, 2):
            self.near(out, wanted[:, :, here], LIMITS[out.dtype])
            self.assertEqual(refused[0], "ArgumentError")
            self.assertTrue(refused[1].startswith("key: 2 heads; allowed: 4"), refused[1])

    def test_a_rank_that_ends_or_is_late_is_an_error_in_time(self):
        for function, ranks in ((lost, 2), (lost, 4), (late, 2)):
            for rank, found in enumerate(run(function, ranks)):
                if rank == 1:
                    continue
                with self.subTest(function.__name__, ranks=ranks, rank=rank):
                    kind, message, seconds = found
                    self.assertEqual(kind, "DeviceError", message)
                    self.assertTrue(message.startswith(f"group: rank {rank} lost"), message)
                    self.assertLess(seconds, 30)

    def test_positions_and_orders(self):
        for order in ("contiguous", "zigzag"):
            for tokens, chunks in ((101, 8), (101, None), (101, UNEVEN), (3, 16), (0, 2)):
                all_of_them = [n for rank in range(4) for n in ring.positions(tokens, rank, 4, order, chunks)]
                self.assertEqual(sorted(all_of_them), list(range(tokens)))
        self.assertEqual(ring.positions(16, 1, 2, "zigzag"), list(range(4, 12)))
        wrong = [(8, 0, 2, "striped"), (8, 2, 2)] + [(8, 0, 2, "zigzag", chunks) for chunks in (0, [3, 4], [9, -1])]
        for arguments in wrong:
            self.assertEqual(told(ring.positions, *arguments)[0], "ArgumentError")

    def test_the_merge_of_a_gpu_has_the_bits_of_the_library(self):
        inf = float("inf")
        kinds = [(0.5, 1.5), (-inf, 0.0), (3.0, 0.25), (-2e7, 7.0), (80.0, 1e-30), (1.0, math.nan)]
        m, s = [torch.tensor(x).repeat(6) for x in zip(*kinds)]
        w = torch.randn(36, 300, generator=torch.Generator().manual_seed(5))
        w = torch.where(m[:, None] > -inf, w, 0.0)
        w = torch.where(s[:, None] == s[:, None], w, math.nan)
        order = torch.arange(36).view(6, 6).t().reshape(-1)
        shape = lambda x, *more: x.reshape((1, 1, 36) + more).contiguous()
        a = elsa.States(shape(m), shape(s), shape(w, 300))
        b = elsa.States(shape(m[order]), shape(s[order]), shape(w[order] * 5, 300))
        for found, wanted in zip(ring._merge_on_device(a, b), elsa.merge([a, b])):
            self.assertTrue(torch.equal(found.isnan(), wanted.isnan()))
            found, wanted = [x.masked_fill(x.isnan(), 0.0).numpy().tobytes() for x in (found, wanted)]
            self.assertEqual(found, wanted)


if __name__ == "__main__":
    unittest.main()
