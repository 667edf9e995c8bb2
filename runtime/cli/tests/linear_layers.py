"""Layers of models whose recurrences the tool computes, compared with their definitions in PyTorch: linear_layers.py TOOL

A Gated DeltaNet layer: transformers' own class of Qwen3-Next with random weights, its gated delta rule computed by
`elsa linear run` in every form, for a prompt and for tokens one by one with the state and the cache of the layer.
A bidirectional Vim block (Vision Mamba, algorithm 1): two selective scans with separate parameters, forward and reverse.
A selective scan is the gated rule: every channel is a head with a state [N, 1], its gate per dim is exp(delta A), its
value delta u, and all channels share B as key and C as query.

The right answer is the same layer with the recurrence token by token in f64. The layer in f32 by PyTorch alone gives
the usual error. Needs torch and transformers."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache, Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

FORMS = ["auto", "recurrent", "chunk", "fused-chunk", "parallel", "scan"]
# Allowed relative error of a layer in f32, whose sums have at most a few hundred terms.
ALLOWED = 4e-6


class Tool:
    """Linear attention by the tool: tensors [batch, tokens, heads, dim] in f32, the state [batch, heads, d_k, d_v]."""

    def __init__(self, path, folder):
        self.path, self.folder, self.calls = path, folder, 0

    def __call__(self, rule, q, k, v, decay=None, beta=None, past=None, form="auto", flags=()):
        at = lambda name: os.path.join(self.folder, name + ".npy")
        words = [self.path, "linear", "run", "--rule", rule, "--form", form, "--layout", "bnhd", "--out", at("out"),
                 "--present-state", at("present"), "--backend", os.environ.get("ELSA_BACKEND", "auto"), *flags]
        given = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta, "past-state": past}
        for name, x in given.items():
            if x is not None:
                np.save(at(name), np.ascontiguousarray(x.float().numpy()))
                words += ["--" + name, at(name)]
        run = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
        if run.returncode:
            raise SystemExit(f"{' '.join(words[:5])}: {run.stderr.strip()}")
        self.calls += 1
        return torch.from_numpy(np.load(at("out"))), torch.from_numpy(np.load(at("present")))


def error(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


class GatedDeltaNet:
    """The layer of transformers; a run may replace its recurrence."""

    NAMES = ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]

    def __init__(self):
        torch.manual_seed(1)
        self.config = Qwen3NextConfig(
            hidden_size=64, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16,
            linear_value_head_dim=24, linear_conv_kernel_dim=4, num_hidden_layers=1, layer_types=["linear_attention"],
        )  # fmt: skip
        self.layer = qwen.Qwen3NextGatedDeltaNet(self.config, 0).eval()
        with torch.no_grad():
            # The bias of the steps spreads the gates from slow to nearly closed.
            self.layer.dt_bias.copy_(torch.linspace(-6.0, 1.0, 4))
        self.own = {name: getattr(qwen, name) for name in self.NAMES}

    def run(self, x, prompt, rule=None, double=False):
        """Returns the output of all tokens: `prompt` of them at once, the others one by one."""
        layer = self.layer.double() if double else self.layer.float()
        for name in self.NAMES:
            setattr(qwen, name, rule or self.own[name])
        cache = DynamicCache(config=self.config)
        cuts = [x[:, :prompt], *x[:, prompt:].split(1, 1)] if prompt < x.shape[1] else [x]
        with torch.no_grad():
            return torch.cat([layer(cut.double() if double else cut, cache_params=cache) for cut in cuts], 1)

    @staticmethod
    def exact(q, k, v, g, beta, initial_state=None, **_):
        """Computes the gated delta rule by its definition, in f64."""
        q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
        groups = v.shape[2] // k.shape[2]
        unit = lambda x: (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(groups, 2)
        q, k = unit(q), unit(k)
        b, t, h, dv = v.shape
        state = torch.zeros(b, h, k.shape[3], dv, dtype=torch.float64) if initial_state is None else initial_state.double()
        out = []
        for i in range(t):
            state = state * g[:, i].exp()[..., None, None]
            kept = torch.einsum("bhkv,bhk->bhv", state, k[:, i])
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, i], beta[:, i, :, None] * (v[:, i] - kept))
            out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, i]))
        return torch.stack(out, 1) * q.shape[3] ** -0.5, state

    @staticmethod
    def by(tool, form):
        def rule(q, k, v, g, beta, initial_state=None, **_):
            return tool("gated-delta", q, k, v, g, beta, initial_state, form, ["--normalize=1e-6"])

        return rule

    def check(self, tool):
        x = torch.randn(2, 150, 64, generator=torch.Generator().manual_seed(2))
        for prompt, name in [(150, "a prompt of 150"), (140, "140 tokens and 10 one by one")]:
            wanted = self.run(x, prompt, self.exact, double=True)
            usual = error(self.run(x, prompt), wanted)
            forms = FORMS if prompt == 150 else FORMS[:1]
            for form in forms:
                yield f"Gated DeltaNet layer, {name}, {form}", error(self.run(x, prompt, self.by(tool, form)), wanted), usual


class Vim(nn.Module):
    """A bidirectional block of Vision Mamba: a gate z, and per direction a short convolution, a selective scan and its parameters."""

    def __init__(self, width=32, inner=64, states=8, rank=4, kernel=4):
        super().__init__()
        self.states, self.rank = states, rank
        self.norm = nn.LayerNorm(width)
        self.in_proj, self.out_proj = nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        directions = []
        for _ in range(2):
            part = nn.Module()
            part.conv = nn.Conv1d(inner, inner, kernel, groups=inner, padding=kernel - 1)
            part.x_proj = nn.Linear(inner, rank + 2 * states, bias=False)
            part.dt_proj = nn.Linear(rank, inner)
            # Steps from 0.001 to 0.1, the initial values of Mamba.
            step = torch.exp(torch.rand(inner) * 4.6 - 6.9)
            part.dt_proj.bias.data = step + torch.log(-torch.expm1(-step))
            part.a_log = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(inner, 1))
            part.d = nn.Parameter(torch.ones(inner))
            directions.append(part)
        self.directions = nn.ModuleList(directions)

    def forward(self, tokens, scan):
        """Returns the output for tokens [batch, tokens, width]. `scan(u, delta, a, b, c, reverse)` returns y; u, delta and y
        are [batch, tokens, inner]."""
        x, z = self.in_proj(self.norm(tokens)).chunk(2, -1)
        total = 0
        for reverse, part in enumerate(self.directions):
            # The filter of the second direction sees a token and the following ones.
            turned = x.flip(1) if reverse else x
            u = F.silu(part.conv(turned.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            u = u.flip(1) if reverse else u
            step, b, c = part.x_proj(u).split([self.rank, self.states, self.states], -1)
            delta = F.softplus(part.dt_proj(step))
            y = scan(u, delta, -part.a_log.exp(), b, c, bool(reverse)) + part.d * u
            total = total + y * F.silu(z)
        return tokens + self.out_proj(total)

    @staticmethod
    def plain(u, delta, a, b, c, reverse):
        """Computes the selective scan by its definition."""
        h, y = torch.zeros(u.shape[0], u.shape[2], a.shape[1], dtype=u.dtype), [None] * u.shape[1]
        for t in reversed(range(u.shape[1])) if reverse else range(u.shape[1]):
            h = torch.exp(delta[:, t, :, None] * a) * h + (delta[:, t] * u[:, t])[..., None] * b[:, t, None, :]
            y[t] = (h * c[:, t, None, :]).sum(-1)
        return torch.stack(y, 1)

    @staticmethod
    def by(tool, form):
        def scan(u, delta, a, b, c, reverse):
            decay = delta[..., None] * a
            flags = ["--scale", "1", *(["--reverse"] if reverse else [])]
            out, _ = tool("gated", c[:, :, None], b[:, :, None], (delta * u)[..., None], decay, None, None, form, flags)
            return out[..., 0]

        return scan

    @staticmethod
    def check(tool):
        torch.manual_seed(3)
        block = Vim().eval()
        x = torch.randn(2, 197, 32)
        with torch.no_grad():
            usual = block(x, Vim.plain)
            found = [(form, block(x, Vim.by(tool, form))) for form in FORMS]
            wanted = block.double()(x.double(), Vim.plain)
        for form, y in found:
            # Relative to the block's contribution to its tokens.
            yield f"bidirectional Vim block, {form}", error(y - x, wanted - x), error(usual - x, wanted - x)


def main(path):
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(path, folder)
        for layer in (GatedDeltaNet(), Vim):
            for name, found, usual in layer.check(tool):
                bad = not found <= ALLOWED
                failed += bad
                print(f"{'FAILED' if bad else 'ok'}: {name}: error {found:.1e}, PyTorch's {usual:.1e}", flush=True)
        print(f"{tool.calls} calls of {os.path.basename(path)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
