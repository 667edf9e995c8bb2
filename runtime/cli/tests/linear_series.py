"""Convolutions and selective scans by the tool, against ONNX's CausalConvWithState and Mamba's definition: linear_series.py TOOL

Every case of the package onnx whose node is CausalConvWithState is computed by `elsa linear conv` by both methods and in both
orders of axes, and compared with the case's own outputs. Selective scans of many shapes are compared with the definition
token by token in f64, which is also compared with one that computes in whole tensors, as `selective_scan_ref` does."""

import itertools
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import helper
from onnx.backend.test.case import node as cases
from onnx.backend.test.case.node import causal_conv_with_state as _  # Fills the list of cases.

INPUTS = ["input", "weight", "bias", "past_state"]
METHODS = ["auto", "direct", "fft"]


def by_tool(tool, folder, words, tensors):
    """Returns the output and last states that the tool computes, or its message. `tensors` are keyed by flag."""
    at = lambda name: os.path.join(folder, name + ".npy")
    words = [tool, "linear", *words, "--verify", "--backend", os.environ.get("ELSA_BACKEND", "auto"),
             "--out", at("out"), "--present-state", at("present")]  # fmt: skip
    for name, x in tensors.items():
        if x is not None:
            np.save(at(name), np.ascontiguousarray(x))
            words += ["--" + name, at(name)]
    run = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
    if run.returncode:
        return run.stderr.strip() or f"exit status {run.returncode}"
    return np.load(at("out")), np.load(at("present"))


def turned(x):
    """Converts [batch, tokens, channels] to [batch, channels, tokens], and back; groups and their states stay together."""
    return None if x is None else np.moveaxis(x, 1, -1)


def differs(what, found, wanted, sums):
    """Returns the fault of an answer, or None: `sums` roundings and the rounding of its type are allowed."""
    if isinstance(found, str):
        return f"{what}: {found}"
    for name, x, y in zip(["output", "state"], found, wanted):
        if x.shape != y.shape:
            return f"{what}: {name}: shape {x.shape}; allowed: {y.shape}"
        size = max(1.0, np.abs(y).max(initial=0.0))
        allowed = size * (sums * 2.0**-24 + (2.0**-10 if np.float16 in (x.dtype, y.dtype) else 0))
        error = np.abs(x.astype(np.float64) - y).max(initial=0.0)
        if not error <= allowed:
            return f"{what}: {name}: error {error:.1e}; allowed: {allowed:.1e}"
    return None


def convolutions(tool, folder):
    """Yields the cases of onnx, each with its faults."""
    for raw in cases._NodeTestCases:
        graph = raw.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type != "CausalConvWithState":
            continue
        node, (inputs, outputs) = graph.node[0], raw.data_sets[0]
        given = iter([getattr(x, "numpy_array", x) for x in inputs])
        x = {name: next(given) if at < len(node.input) and node.input[at] else None for at, name in enumerate(INPUTS)}
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        activation = attributes.get("activation", b"none").decode()
        wanted = [getattr(y, "numpy_array", y) for y in outputs]
        wide = lambda x: None if x is None else x.astype(np.float32)
        faults = []
        for method, layout in itertools.product(METHODS, ["bct", "btc"]):
            tensors = {"u": x["input"] if layout == "bct" else turned(x["input"]), "filter": wide(x["weight"]),
                       "bias": wide(x["bias"]), "past-state": wide(x["past_state"])}  # fmt: skip
            words = ["conv", "--order", "newest-last", "--method", method, "--layout", layout]
            words += ["--silu"] if activation in ("silu", "swish") else []
            found = by_tool(tool, folder, words, tensors)
            if layout == "btc" and not isinstance(found, str):
                found = turned(found[0]), found[1]
            faults.append(differs(f"{method}, {layout}", found, wanted, 8 + x["weight"].shape[2]))
        yield raw.name, [fault for fault in faults if fault]


def softplus(x):
    return np.logaddexp(0, x)


def by_tokens(u, delta, a, b, c, d, z, bias, past, soft, reverse):
    """Returns output and last states by the definition, number by number."""
    batch, tokens, channels = u.shape
    numbers, out, state = a.shape[1], np.zeros(u.shape), np.array(past, np.float64)
    for i, k in itertools.product(range(batch), range(channels)):
        for t in range(tokens)[:: -1 if reverse else 1]:
            step = delta[i, t, k] + bias[k]
            step = softplus(step) if soft else step
            y = d[k] * u[i, t, k]
            for n in range(numbers):
                of_b = b[k, n] if b.ndim == 2 else b[i, t, k // (channels // b.shape[2]), n]
                of_c = c[k, n] if c.ndim == 2 else c[i, t, k // (channels // c.shape[2]), n]
                state[i, k, n] = np.exp(step * a[k, n]) * state[i, k, n] + step * of_b * u[i, t, k]
                y += of_c * state[i, k, n]
            out[i, t, k] = y * z[i, t, k] / (1 + np.exp(-z[i, t, k]))
    return out, state


def by_tensors(u, delta, a, b, c, d, z, bias, past, soft, reverse):
    """Returns what `by_tokens` returns, computed for all channels at once."""
    steps, state, ys = delta + bias, np.array(past, np.float64), np.zeros(u.shape)
    steps = softplus(steps) if soft else steps
    every = lambda x: (np.broadcast_to(x, u.shape[:2] + x.shape) if x.ndim == 2
                       else np.repeat(x, u.shape[2] // x.shape[2], 2))  # fmt: skip
    factors = np.exp(np.einsum("btd,dn->btdn", steps, a))
    added = np.einsum("btd,btdn,btd->btdn", steps, every(b), u)
    for t in range(u.shape[1])[:: -1 if reverse else 1]:
        state = factors[:, t] * state + added[:, t]
        ys[:, t] = np.einsum("bdn,bdn->bd", state, every(c)[:, t])
    return (ys + u * d) * z / (1 + np.exp(-z)), state


def scans(tool, folder):
    """Yields selective scans, each with its faults."""
    shapes = [(2, 9, 6, 4), (1, 1, 3, 1), (1, 70, 8, 16), (2, 65, 33, 5), (1, 130, 4, 3)]
    for seed, ((batch, tokens, channels, numbers), layout) in enumerate(itertools.product(shapes, ["bct", "btc"])):
        random = np.random.RandomState(seed)
        normal = lambda *shape: random.standard_normal(shape).astype(np.float32)
        groups = 2 if channels % 2 == 0 and seed % 3 == 0 else 1
        soft, reverse, fixed = seed % 2 == 0, seed % 4 == 1, seed % 5 == 3
        token = (batch, tokens, groups, numbers)
        x = {
            "u": normal(batch, tokens, channels), "delta": normal(batch, tokens, channels) * (1 if soft else 0.1),
            "a": -np.abs(normal(channels, numbers)), "b": normal(channels, numbers) if fixed else normal(*token),
            "c": normal(*token), "d": normal(channels), "z": normal(batch, tokens, channels),
            "delta-bias": normal(channels) * (1 if soft else 0.1), "past-state": normal(batch, channels, numbers),
        }  # fmt: skip
        exact = [y.astype(np.float64) for y in x.values()]
        wanted = by_tokens(*exact, soft, reverse)
        faults = [differs("in whole tensors", by_tensors(*exact, soft, reverse), wanted, 1e-3)]
        words = ["selective", "--layout", layout] + ["--softplus"] * soft + ["--reverse"] * reverse
        if layout == "bct":
            x = {name: turned(y) if y.ndim > 2 and name != "past-state" else y for name, y in x.items()}
        found = by_tool(tool, folder, words, x)
        if layout == "bct" and not isinstance(found, str):
            found = np.moveaxis(found[0], -1, 1), found[1]
        faults.append(differs("the tool", found, wanted, 64 + 4 * numbers))
        yield f"selective {batch}, {tokens}, {channels}, {numbers}, {layout}", [fault for fault in faults if fault]


def main(tool):
    failed, counts = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for some in (convolutions(tool, folder), scans(tool, folder)):
            found = list(some)
            counts.append(len(found))
            for name, faults in found:
                failed += bool(faults)
                print(f"FAILED: {name}: {'; '.join(faults)}" if faults else f"ok: {name}")
    print(f"onnx {onnx.__version__}: {counts[0]} cases of onnx, {counts[1]} selective scans")
    return 0 if all(counts) and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
