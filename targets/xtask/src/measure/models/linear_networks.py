"""Runs whole networks of linear attention and selective scans by PyTorch's operators and by elsa-edge's: a table in Markdown.

`linear_networks.py [--cpu] [--small] [--batch N] [NETWORK ...]` needs elsa.py on PYTHONPATH.

Vim-T has bidirectional selective scans with short convolutions; EfficientViT-B1 has ReLU attention, linear and non-causal. The
networks have their authors' widths and depths, random weights and f32 pictures of 224 x 224. Only those operators are exchanged;
projections, norms and other convolutions stay. PyTorch has no selective scan, so its operators compute the scan in two ways:
token by token ("steps"), and by doubling, in log2(tokens) rounds over all tokens ("doubling"). Times are medians of 15 replays of
CUDA graphs of the whole network, by turns; on a CPU, of calls. The ratio is the median of the ratios of times. Errors are the
largest of the output, relative to its largest number, compared with the same network in f64, token by token.

`--small` makes networks of few layers and pictures of 64 x 64. Exit status 1: an error of elsa-edge is above 1e-4.
"""

import argparse
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import elsa

REPLAYS, MOST = 15, 1e-4


def causal_conv(u, weight, bias, reverse):
    """The SiLU of the causal convolution of u [batch, tokens, channels], of both directions."""
    pad = weight.shape[2] - 1
    turned = F.pad(u.transpose(1, 2), (0, pad) if reverse else (pad, 0))
    return F.silu(F.conv1d(turned, weight.flip(2) if reverse else weight, bias, groups=weight.shape[0])).transpose(1, 2)


def scan_steps(gates, adds, reverse):
    """States of all tokens of `h <- gate h + add`, [batch, tokens, channels, states], token by token."""
    h, states = torch.zeros_like(adds[:, 0]), [None] * adds.shape[1]
    for t in reversed(range(adds.shape[1])) if reverse else range(adds.shape[1]):
        h = torch.addcmul(adds[:, t], gates[:, t], h)
        states[t] = h
    return torch.stack(states, 1)


def scan_doubling(gates, adds, reverse):
    """The same, in rounds that double the number of tokens before a token that its state contains."""
    if reverse:
        return scan_doubling(gates.flip(1), adds.flip(1), False).flip(1)
    reach = 1
    while reach < adds.shape[1]:
        later = torch.addcmul(adds[:, reach:], gates[:, reach:], adds[:, :-reach])
        adds = torch.cat([adds[:, :reach], later], 1)
        gates = torch.cat([gates[:, :reach], gates[:, reach:] * gates[:, :-reach]], 1)
        reach *= 2
    return adds


class Torch:
    """PyTorch's operators; `scan` computes the states of a selective scan."""

    def __init__(self, scan):
        self.scan = scan

    conv = staticmethod(causal_conv)

    def selective(self, u, delta, a, b, c, d, z, bias, reverse):
        delta = F.softplus(delta + bias)
        gates = torch.exp(delta[..., None] * a)
        adds = (delta * u)[..., None] * b[:, :, None]
        y = (self.scan(gates, adds, reverse) @ c[..., None])[..., 0]
        return (y + d * u) * F.silu(z)

    @staticmethod
    def attention(qkv):
        q, k, v = qkv.transpose(-1, -2).chunk(3, -1)
        v = F.pad(v, (0, 1), value=1.0)
        return F.relu(q) @ (F.relu(k).transpose(-1, -2) @ v)


class Elsa:
    """elsa-edge's operators."""

    @staticmethod
    def conv(u, weight, bias, reverse):
        return elsa.conv(u, weight, bias, order="newest_last", silu=True, reverse=reverse)

    @staticmethod
    def selective(u, delta, a, b, c, d, z, bias, reverse):
        return elsa.selective(u, delta, a, b, c, d, z, bias, softplus=True, reverse=reverse)

    @staticmethod
    def attention(qkv):
        # elsa-edge reads rows whose elements are adjacent.
        rows, dim = qkv.transpose(-1, -2).contiguous(), qkv.shape[2] // 3
        q, k = F.relu(rows[..., : 2 * dim]).chunk(2, -1)
        v = F.pad(rows[..., 2 * dim :], (0, 1), value=1.0)
        return elsa.linear_attention(q, k, v, scale=1.0, direction="non_causal")


class VimBlock(nn.Module):
    """A bidirectional block of Vision Mamba (algorithm 1): a gate z, and for each direction a short convolution and a scan."""

    def __init__(self, width, states=16, kernel=4):
        super().__init__()
        inner, self.rank, self.states = 2 * width, math.ceil(width / 16), states
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.in_proj, self.out_proj = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.directions = nn.ModuleList()
        for _ in range(2):
            part = nn.Module()
            part.conv = nn.Conv1d(inner, inner, kernel, groups=inner)
            part.x_proj = nn.Linear(inner, self.rank + 2 * states, bias=False)
            part.dt_proj = nn.Linear(self.rank, inner)
            # Steps from 0.001 to 0.1, the initial values of Mamba.
            step = torch.exp(torch.rand(inner) * 4.6 - 6.9)
            part.dt_proj.bias.data = step + torch.log(-torch.expm1(-step))
            part.a_log = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(inner, 1))
            part.d = nn.Parameter(torch.ones(inner))
            self.directions.append(part)

    def forward(self, tokens, operators):
        x, z = self.in_proj(self.norm(tokens)).chunk(2, -1)
        total = 0
        for reverse, part in enumerate(self.directions):
            u = operators.conv(x, part.conv.weight, part.conv.bias, bool(reverse))
            step, b, c = part.x_proj(u).split([self.rank, self.states, self.states], -1)
            delta = F.linear(step, part.dt_proj.weight)
            total = total + operators.selective(
                u, delta, -part.a_log.exp(), b, c, part.d, z, part.dt_proj.bias, bool(reverse)
            )
        return tokens + self.out_proj(total)


class Vim(nn.Module):
    """Vim-T: patches of 16 x 16 with a class token in their middle, and 24 blocks of width 192."""

    def __init__(self, side=224, blocks=24, width=192):
        super().__init__()
        count = (side // 16) ** 2
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, count + 1, width) * 0.02)
        self.blocks = nn.ModuleList(VimBlock(width) for _ in range(blocks))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, 1000)

    def forward(self, pixels, operators):
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        middle = x.shape[1] // 2
        x = torch.cat([x[:, :middle], self.token.expand(x.shape[0], -1, -1), x[:, middle:]], 1) + self.positions
        for block in self.blocks:
            x = block(x, operators)
        return self.head(self.norm(x[:, middle]))


def conv(inputs, outputs, kernel=1, stride=1, groups=1, norm=True, act=True):
    """A convolution with a norm and an activation. Without a norm it has a bias."""
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=not norm)]
    layers += [nn.BatchNorm2d(outputs)] if norm else []
    return nn.Sequential(*layers, *([nn.Hardswish()] if act else []))


def inverted(inputs, outputs, stride=1, expand=4, norms=True):
    """A block of a wide convolution for each channel between two narrow ones; the first two have a norm if `norms`."""
    wide = inputs * expand
    first = conv(inputs, wide, norm=norms)
    return nn.Sequential(first, conv(wide, wide, 3, stride, wide, norm=norms), conv(wide, outputs, act=False))


class Attention(nn.Module):
    """ReLU attention at two scales, with heads of 16 dims."""

    def __init__(self, width, dim=16):
        super().__init__()
        self.dim = dim
        self.qkv = nn.Conv2d(width, 3 * width, 1, bias=False)
        self.scale = nn.Sequential(
            nn.Conv2d(3 * width, 3 * width, 5, padding=2, groups=3 * width, bias=False),
            nn.Conv2d(3 * width, 3 * width, 1, groups=3 * (width // dim), bias=False),
        )
        self.proj = conv(2 * width, width, act=False)

    def forward(self, x, operators):
        batch, _, height, width = x.shape
        qkv = self.qkv(x)
        qkv = torch.cat([qkv, self.scale(qkv)], 1).reshape(batch, -1, 3 * self.dim, height * width)
        # The last value of each token is one, so the last output is the sum of the weights.
        out = operators.attention(qkv)
        out = out[..., :-1] / (out[..., -1:] + 1e-5)
        return self.proj(out.transpose(-1, -2).reshape(batch, -1, height, width))


class EfficientViT(nn.Module):
    """EfficientViT-B1: two stages of convolutions, two stages with attention, and a head."""

    def __init__(self, widths=(16, 32, 64, 128, 256), depths=(1, 2, 3, 3, 4)):
        super().__init__()
        stem = nn.Sequential(conv(3, widths[0], 3, 2))
        for _ in range(depths[0]):
            wide = conv(widths[0], widths[0], 3, groups=widths[0])
            stem.append(nn.Sequential(wide, conv(widths[0], widths[0], act=False)))
        # Pairs of the kind of a block and the block: its input is added unless the kind is "down".
        self.kinds, self.parts = ["stem"], nn.ModuleList([stem])
        for stage in range(1, 5):
            attends = stage > 2
            add = lambda kind, part: (self.kinds.append(kind), self.parts.append(part))  # noqa: E731
            add("down", inverted(widths[stage - 1], widths[stage], 2, norms=not attends))
            for _ in range(depths[stage] if attends else depths[stage] - 1):
                if attends:
                    add("attention", Attention(widths[stage]))
                add("local", inverted(widths[stage], widths[stage], norms=not attends))
        self.last = conv(widths[4], 1536)
        self.head = nn.Sequential(nn.Linear(1536, 1600, bias=False), nn.LayerNorm(1600), nn.Hardswish(), nn.Linear(1600, 1000))

    def forward(self, pixels, operators):
        x = pixels
        for kind, part in zip(self.kinds, self.parts):
            if kind == "stem":
                x = part[0](x)
                for layer in part[1:]:
                    x = x + layer(x)
            elif kind == "attention":
                x = x + part(x, operators)
            else:
                x = part(x) + (x if kind == "local" else 0)
        return self.head(self.last(x).mean((2, 3)))


def runner(call, on_gpu):
    """Returns what runs the network once and waits, and returns the milliseconds; and the output of its last run."""
    if not on_gpu:

        def run():
            begin = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - begin)

        return run, call()
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run():
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    run()
    return run, output.clone()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cpu", action="store_true", help="run on the CPU")
    parser.add_argument("--small", action="store_true", help="few layers and small pictures")
    parser.add_argument("--batch", type=int, default=1, metavar="N")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="names in the table; all without any")
    given = parser.parse_args()
    torch.manual_seed(0)
    # Products in TF32 would hide the errors of the operators.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device, side = "cpu" if given.cpu else "cuda", 64 if given.small else 224
    small = {"widths": (8, 16, 32, 64, 64), "depths": (1, 2, 2, 1, 1)}
    ways = {"steps": Torch(scan_steps), "doubling": Torch(scan_doubling)}
    networks = {
        "Vim-T": (lambda: Vim(side, 2) if given.small else Vim(side), ways),
        "EfficientViT-B1": (lambda: EfficientViT(**small) if given.small else EfficientViT(), {"products": Torch(None)}),
    }
    name = "CPU" if given.cpu else torch.cuda.get_device_name()
    print(f"{name}, PyTorch {torch.__version__}, {given.batch} x 3 x {side} x {side}\n")
    print("| network | PyTorch's way | PyTorch, ms | elsa-edge, ms | ratio | error: PyTorch | elsa-edge |")
    print("|---|---|---|---|---|---|---|", flush=True)
    failed = False
    with torch.inference_mode():
        for name in given.networks or networks:
            make, rivals = networks[name]
            net = make().eval()
            pixels = torch.randn(given.batch, 3, side, side)
            net, pixels = net.to(device), pixels.to(device)
            exact = net.double()(pixels.double(), Torch(scan_steps))
            # f64 represents the weights exactly, so they are as before.
            net.float()
            runs = {way: runner(lambda op=op: net(pixels, op), not given.cpu) for way, op in {**rivals, "elsa": Elsa}.items()}
            times = {way: [] for way in runs}
            for _ in range(REPLAYS):
                for way, (run, _) in runs.items():
                    times[way].append(run())
            error = {way: ((out.double() - exact).abs().max() / exact.abs().max()).item() for way, (_, out) in runs.items()}
            failed |= not error["elsa"] <= MOST
            for way in rivals:
                ratio = statistics.median(a / b for a, b in zip(times[way], times["elsa"]))
                theirs, own = (statistics.median(times[which]) for which in (way, "elsa"))
                print(
                    f"| {name} | {way} | {theirs:.3f} | {own:.3f} | **{ratio:.2f}** | {error[way]:.1e} | {error['elsa']:.1e} |",
                    flush=True,
                )
    sys.exit(failed)


main()
