"""Linear attention by the tool, compared with ONNX's operator LinearAttention and ONNX Runtime's: linear_attention.py TOOL

Every case of the package onnx whose node is LinearAttention is computed by `elsa linear run` in every form and layout and
compared with the case's own outputs. Cases made here go further: heads shared both ways, keys shared by states, gates and
lengths that cut chunks anywhere. The right answer is the recurrence in f64; ONNX Runtime's operator of com.microsoft,
if installed, must agree too, which confirms the recurrence here."""

import itertools
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.backend.test.case import node as cases
from onnx.backend.test.case.node import linear_attention as _  # Fills the list of cases.

# The operator's inputs, in their order, and the tool's flag for each.
INPUTS = {"query": "--q", "key": "--k", "value": "--v", "past_state": "--past-state", "decay": "--decay", "beta": "--beta"}
FORMS = ["auto", "recurrent", "chunk", "fused-chunk", "parallel", "scan"]
LAYOUTS = ["bnc", "bnhd", "bhnd"]


class Case:
    """Tensors by name, packed as in the operator, [batch, tokens, heads * dim]; None if absent."""

    def __init__(self, name, rule, heads, states, tensors, scale=None):
        self.name, self.rule, self.heads, self.states, self.tensors = name, rule, heads, states, tensors
        self.dk = tensors["query"].shape[2] // heads
        self.dv = tensors["value"].shape[2] // states
        self.scale = scale or self.dk**-0.5
        self.explicit = scale
        self.wanted = None

    def split(self, name, heads=None):
        """Returns [batch, tokens, heads, dim] in f64."""
        x = self.tensors[name].astype(np.float64)
        size = {"query": self.dk, "key": self.dk, "value": self.dv}.get(name)
        return x.reshape(*x.shape[:2], heads or x.shape[2] // size, -1)

    def exact(self):
        """Returns the packed output and the last state by the definition, token by token in f64."""
        q, k, v = self.split("query"), self.split("key"), self.split("value")
        batch, tokens, states, _ = v.shape
        k = np.repeat(k, states // k.shape[2], 2)
        gated, delta = "gated" in self.rule, "delta" in self.rule
        decay = np.exp(self.split("decay", states)) if gated else None
        beta = np.broadcast_to(self.tensors["beta"].astype(np.float64), (batch, tokens, states)) if delta else None
        state = np.zeros((batch, states, self.dk, self.dv))
        if self.tensors["past_state"] is not None:
            state += self.tensors["past_state"]
        # For each head of the output: the state that it reads, and the query head that reads it.
        out_heads = max(self.heads, states)
        of, by = np.arange(out_heads) * states // out_heads, np.arange(out_heads) * self.heads // out_heads
        out = np.zeros((batch, tokens, out_heads, self.dv))
        for t in range(tokens):
            if gated:
                state = state * decay[:, t, :, :, None]
            u = v[:, t]
            if delta:
                u = beta[:, t, :, None] * (u - np.einsum("bhkv,bhk->bhv", state, k[:, t]))
            state = state + np.einsum("bhk,bhv->bhkv", k[:, t], u)
            out[:, t] = self.scale * np.einsum("bhkv,bhk->bhv", state[:, of], q[:, t, by])
        return out.reshape(batch, tokens, -1), state


def of_onnx(raw):
    """Converts a case of the package onnx."""
    node = raw.model.graph.node[0]
    inputs, outputs = ([getattr(x, "numpy_array", x) for x in side] for side in raw.data_sets[0])
    given = iter(inputs)
    tensors = {name: next(given) if at < len(node.input) and node.input[at] else None for at, name in enumerate(INPUTS)}
    a = {x.name: helper.get_attribute_value(x) for x in node.attribute}
    rule = a.get("update_rule", b"gated_delta").decode()
    case = Case(raw.name, rule, a["q_num_heads"], a["kv_num_heads"], tensors, a.get("scale"))
    case.wanted = outputs
    return case


def made():
    """Yields the cases of this file: heads of queries, of values and of keys; tokens; and other differences."""
    heads = [(4, 4, 4), (8, 4, 4), (2, 4, 4), (2, 4, 2), (4, 2, 1), (6, 2, 2)]
    rules = ["linear", "gated", "delta", "gated_delta"]
    for seed, ((hq, hv, hk), rule, tokens) in enumerate(itertools.product(heads, rules, [1, 15, 70])):
        random = np.random.RandomState(seed)
        normal = lambda *shape: random.standard_normal(shape).astype(np.float32)
        batch, dk, dv = 2, 8, 12
        key = normal(batch, tokens, hk, dk)
        if "delta" in rule:
            key /= np.linalg.norm(key, axis=-1, keepdims=True)
        per_dim, one_beta, past = seed % 2 == 0, seed % 3 == 0, seed % 5 < 3
        decay = -np.abs(normal(batch, tokens, hv * (dk if per_dim else 1)))
        tensors = {
            "query": normal(batch, tokens, hq * dk), "key": key.reshape(batch, tokens, hk * dk),
            "value": normal(batch, tokens, hv * dv), "past_state": normal(batch, hv, dk, dv) if past else None,
            "decay": decay if "gated" in rule else None,
            "beta": random.uniform(0, 1, (batch, tokens, 1 if one_beta else hv)).astype(np.float32) if "delta" in rule else None,
        }  # fmt: skip
        yield Case(f"{rule} {hq}/{hv}/{hk} heads, {tokens} tokens", rule, hq, hv, tensors)


def laid(case, layout):
    """Returns the case's tensors in `layout`."""
    for name, x in case.tensors.items():
        if x is None:
            continue
        if name != "past_state" and layout != "bnc":
            dim = {"query": case.dk, "key": case.dk, "value": case.dv}.get(name)
            if name == "decay" and x.shape[2] != case.states:
                dim = case.dk
            x = x.reshape(*x.shape[:2], -1, dim) if dim else x
            x = x.swapaxes(1, 2) if layout == "bhnd" else x
        yield name, np.ascontiguousarray(x)


def by_tool(tool, folder, case, layout, form):
    """Returns the packed output and the state that the tool computes, or its error message."""
    at = lambda name: os.path.join(folder, name + ".npy")
    words = [tool, "linear", "run", "--rule", case.rule.replace("_", "-"), "--form", form, "--layout", layout,
             "--backend", os.environ.get("ELSA_BACKEND", "auto"), "--out", at("out"), "--present-state", at("present")]
    if layout == "bnc":
        words += ["--heads", str(case.heads), "--kv-heads", str(case.states)]
    if case.explicit:
        words += ["--scale", str(case.explicit)]
    for name, x in laid(case, layout):
        np.save(at(name), x)
        words += [INPUTS[name], at(name)]
    run = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
    if run.returncode:
        return run.stderr.strip() or f"exit status {run.returncode}"
    out = np.load(at("out"))
    if layout == "bhnd":
        out = out.swapaxes(1, 2)
    return out.reshape(*out.shape[:2], -1), np.load(at("present"))


def by_onnxruntime(case):
    """Returns output and state of ONNX Runtime's own operator; None if it lacks the case."""
    if case.tensors["query"].dtype != np.float32:
        return None
    names = [name if case.tensors[name] is not None else "" for name in INPUTS]
    node = helper.make_node("LinearAttention", names, ["out", "present"], domain="com.microsoft", update_rule=case.rule,
                            q_num_heads=case.heads, kv_num_heads=case.states, scale=float(case.explicit or 0.0))
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "case", [value(name, case.tensors[name].shape) for name in names if name],
                              [value("out", None), value("present", None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return None
    return session.run(None, {name: case.tensors[name] for name in names if name})


def differs(what, found, exact, case, also=0.0):
    """Returns the fault of an answer, or None. The error of f32 sums over tokens and dims, of rounding to its type, and
    `also` are allowed."""
    for name, x, y in zip(["output", "state"], found, exact):
        if x.shape != y.shape:
            return f"{what}: {name}: shape {x.shape}; allowed: {y.shape}"
        size = max(1.0, np.abs(y).max(initial=0.0))
        sums = 2.0**-24 * (16 + 4 * (case.dk + case.tensors["query"].shape[1]))
        allowed = size * (sums + also + (2.0**-11 if x.dtype == np.float16 else 2.0**-24))
        error = np.abs(x.astype(np.float64) - y).max(initial=0.0)
        if not error <= allowed:
            return f"{what}: {name}: error {error:.1e}; allowed: {allowed:.1e}"
    return None


def faults(tool, folder, case, ways):
    exact = case.exact()
    if case.wanted is not None:
        yield differs("the case's own answer", case.wanted, exact, case)
    others = by_onnxruntime(case)
    if others is not None:
        yield differs("ONNX Runtime", others, exact, case)
    for layout, form in ways:
        found = by_tool(tool, folder, case, layout, form)
        what = f"{form}, {layout}"
        yield f"{what}: {found}" if isinstance(found, str) else differs(what, found, exact, case)


def main(tool):
    given = [of_onnx(raw) for raw in cases._NodeTestCases if len(raw.model.graph.node) == 1
             and raw.model.graph.node[0].op_type == "LinearAttention"]
    mine = list(made())
    failed = passed = 0
    compared = sum(by_onnxruntime(case) is not None for case in given + mine)
    with tempfile.TemporaryDirectory() as folder:
        for at, case in enumerate(given + mine):
            ways = list(itertools.product(LAYOUTS, FORMS))
            if case.wanted is None:
                # There are many cases here, so each is computed in one layout and two forms only.
                ways = [(LAYOUTS[at % 3], FORMS[(at + i) % len(FORMS)]) for i in (0, 3)]
            found = [fault for fault in faults(tool, folder, case, ways) if fault]
            failed, passed = failed + bool(found), passed + (not found)
            print(f"FAILED: {case.name}: {'; '.join(found)}" if found else f"ok: {case.name}")
    print(f"onnx {onnx.__version__}, ONNX Runtime {onnxruntime.__version__}: {len(given)} cases of onnx, {len(mine)} of "
          f"this file, {compared} of them compared with ONNX Runtime")
    return 0 if given and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
