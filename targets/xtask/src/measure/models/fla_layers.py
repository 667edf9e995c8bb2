"""Runs layers of flash-linear-attention with its own operators and with elsa-edge's: a table in Markdown.

`fla_layers.py [--tokens N] [LAYER ...]` needs elsa.py on PYTHONPATH, flash-linear-attention and a GPU.

A layer has random weights and f32 inputs, batch 1. Its operator is exchanged; projections, convolutions and norms stay. Times are
medians of 15 replays of CUDA graphs of the whole layer, by turns. Errors are the largest of the layer's output, relative to its
largest number, compared with the same layer with the recurrence in f64 as its operator. Mamba-2 has no operator of its own without
the package mamba_ssm, so its rival is the form that it computes in PyTorch. The rival of DeltaNet goes token by token, because fla's
chunks of that rule refuse f32.

Exit status 1: an error of elsa-edge is above 1e-5.
"""

import argparse
import contextlib
import statistics
import sys

import torch
import torch.nn.functional as F
from fla.layers import delta_net, gated_deltanet, gla, kda, mamba2, multiscale_retention

import elsa

REPLAYS, MOST = 15, 1e-5


def by_elsa(q, k, v, rule, decay, beta, normalize):
    """Computes an operator of tensors [batch, tokens, heads, dims]; decay and beta are [batch, tokens, heads, ...]."""
    heads = lambda x: None if x is None else x.transpose(1, 2)  # noqa: E731
    out = torch.empty(v.shape, device=v.device)
    elsa.linear_attention(
        *map(heads, (q, k, v)), rule=rule, decay=heads(decay), beta=heads(beta), normalize=normalize, out=heads(out)
    )
    return out


def by_recurrence(q, k, v, rule, decay, beta, normalize):
    """The same, token by token in f64."""
    wide = lambda x: None if x is None else x.double()  # noqa: E731
    q, k, v, decay, beta = map(wide, (q, k, v, decay, beta))
    if normalize is not None:
        q, k = (x / (x.square().sum(-1, keepdim=True) + normalize).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    state = torch.zeros(*v.shape[:1], v.shape[2], k.shape[3], v.shape[3], dtype=torch.float64, device=v.device)
    outputs = []
    for t in range(v.shape[1]):
        value = v[:, t]
        if decay is not None:
            gate = decay[:, t].exp()
            state = state * gate.reshape(*gate.shape[:2], -1, 1)
        if beta is not None:
            value = beta[:, t, :, None] * (value - (state * k[:, t, :, :, None]).sum(2))
        state = state + k[:, t, :, :, None] * value[:, :, None, :]
        outputs.append((state * q[:, t, :, :, None]).sum(2))
    return torch.stack(outputs, 1).mul(q.shape[-1] ** -0.5).float()


def operators(compute):
    """Returns the operators of fla's layers, computed by `compute`, by module and name."""

    def gates(g, a_log, dt_bias):
        shape = (-1, 1) if g.dim() == 4 else (-1,)
        return -a_log.float().exp().view(shape) * F.softplus(g.float() + dt_bias.view(g.shape[2:]))

    def gated_delta(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval=False, **_):  # noqa: N803
        rate = beta.float().sigmoid() * (2 if allow_neg_eigval else 1)
        return compute(q, k, v, "gated_delta", gates(g, A_log, dt_bias), rate, 1e-6), None

    def delta(q, k, v, beta, use_qk_l2norm_in_kernel=False, **_):
        return compute(q, k, v, "delta", None, beta, 1e-6 if use_qk_l2norm_in_kernel else None), None

    def gated(q, k, v, g, **_):
        return compute(q, k, v, "gated", g, None, None), None

    def retention(q, k, v, **_):
        head = torch.arange(v.shape[2], device=v.device, dtype=torch.float32)
        decay = torch.log1p(-torch.exp2(-5 - head)).expand(*v.shape[:2], -1)
        return compute(q, k, v, "gated", decay, None, None), None

    def state_space(x, dt, a, b, c, D, dt_bias, **_):  # noqa: N803
        step = F.softplus(dt + dt_bias)
        y = compute(c * c.shape[-1] ** 0.5, b, x * step[..., None], "gated", step * a, None, None)
        return y + x * D.view(-1, 1), None

    return {
        gated_deltanet: ("chunk_gated_delta_rule", gated_delta),
        kda: ("chunk_kda", gated_delta),
        gla: ("chunk_gla", gated),
        multiscale_retention: ("chunk_retention", retention),
        delta_net: ("chunk_delta_rule", delta),
        mamba2: ("mamba_chunk_scan_combined", state_space),
    }


@contextlib.contextmanager
def exchanged(module, compute):
    """Exchanges the operator of a module."""
    name, operator = operators(compute)[module]
    own = getattr(module, name)
    setattr(module, name, operator)
    try:
        yield
    finally:
        setattr(module, name, own)


def graph_of(call):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return graph, output


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="names in the table; all without any")
    given = parser.parse_args()
    tokens = given.tokens
    torch.manual_seed(0)
    layers = {
        "Gated DeltaNet": (gated_deltanet, gated_deltanet.GatedDeltaNet(hidden_size=512, head_dim=64, num_heads=8, expand_v=1)),
        "Kimi Delta Attention": (kda, kda.KimiDeltaAttention(hidden_size=512, head_dim=64, num_heads=8)),
        "GLA": (gla, gla.GatedLinearAttention(hidden_size=512, num_heads=8, expand_k=1, expand_v=1)),
        "RetNet": (multiscale_retention, multiscale_retention.MultiScaleRetention(hidden_size=512, num_heads=8, expand_v=1)),
        "DeltaNet": (delta_net, delta_net.DeltaNet(hidden_size=512, num_heads=8)),
        "Mamba-2": (mamba2, mamba2.Mamba2(num_heads=16, head_dim=64, hidden_size=512, state_size=64, chunk_size=64)),
    }
    print(f"{torch.cuda.get_device_name()}, {tokens} tokens\n\n| layer | fla, us | elsa-edge, us | ratio | error: fla | elsa-edge |\n|---|---|---|---|---|---|")
    failed = False
    with torch.inference_mode():
        x = torch.randn(1, tokens, 512, device="cuda")
        for name in given.layers or layers:
            module, layer = layers[name]
            layer = layer.cuda().float().eval()
            forward = (lambda: layer.cuda_kernels_forward(x)[0]) if module is mamba2 else (lambda: layer(x)[0])
            own = (lambda: layer.torch_forward(x)[0]) if module is mamba2 else forward
            if module is delta_net:
                layer.mode = "fused_recurrent"
            graphs = [graph_of(own)]
            if module is delta_net:
                layer.mode = "chunk"
            with exchanged(module, by_elsa):
                graphs.append(graph_of(forward))
            with exchanged(module, by_recurrence):
                exact = forward().double()
            times = [[], []]
            for _ in range(REPLAYS):
                for taken, (graph, _) in zip(times, graphs):
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    graph.replay()
                    end.record()
                    end.synchronize()
                    taken.append(1e3 * start.elapsed_time(end))
            errors = [((out.double() - exact).abs().max() / exact.abs().max()).item() for _, out in graphs]
            ratios = statistics.median(a / b for a, b in zip(*times))
            fla_us, own_us = map(statistics.median, times)
            print(f"| {name} | {fla_us:.0f} | {own_us:.0f} | **{ratios:.2f}** | {errors[0]:.1e} | {errors[1]:.1e} |", flush=True)
            failed |= not errors[1] <= MOST
    sys.exit(failed)


main()
