"""Attention in a single node, original and rewritten, in ONNX Runtime: fused_nodes.py LIBRARY TOOL

Each case is a model of one node `Attention` or `MultiHeadAttention` with free axes. `elsa onnx rewrite` must replace
the node, or keep it for the reason that the case names. At several sizes the answers of the rewritten model are
compared with numpy in f64. Those of the original are compared too, unless the runtime has no kernel for the form on
the CPU."""

import os
import sys
import tempfile

import numpy as np
from onnx import TensorProto, helper
from random_models import Runtime, rewrite

F32, I32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
TYPES = {F32: np.float32, I32: np.int32, I64: np.int64, BOOL: np.bool_}
HEADS, DIM, WIDTH = 3, 4, 12
MICROSOFT = "com.microsoft"
# Sizes of the batch, of queries, of keys and of the past; models whose keys are its queries use only the queries.
SIZES = [(1, 1, 1, 1), (2, 5, 7, 3), (3, 4, 9, 1), (1, 17, 6, 11), (2, 1, 13, 20)]
# Allowed error relative to the largest answer: rounding of scores up to about ten, and of sums of values.
ALLOWED = 2e-5
# Messages of a runtime without a kernel for a form.
UNSUPPORTED = (
    "NOT_IMPLEMENTED", "not implemented", "not supported", "Could not find an implementation", "shall be empty")


class Case:
    """A node. `inputs` has a name, axes and a type for each input, or None. Axes are numbers, or formulas of sizes."""

    def __init__(self, name, op, inputs, outputs=("y",), stays=None, batch=None, opset=23, **attributes):
        self.name, self.op, self.inputs, self.outputs = name, op, inputs, outputs
        self.stays, self.batch, self.attributes = stays, batch, attributes
        self.domain = "" if op == "Attention" and opset >= 23 and "num_heads" not in attributes else MICROSOFT
        self.opset = opset

    def model(self):
        declared = []
        for given in filter(None, self.inputs):
            name, axes, element = given
            axes = [eval(x, {"b": self.batch}) if self.batch and "b" in str(x) else x for x in axes]
            declared.append(helper.make_tensor_value_info(name, element, axes))
        names = [given[0] if given else "" for given in self.inputs]
        node = helper.make_node(self.op, names, list(self.outputs), domain=self.domain, **self.attributes)
        outputs = [helper.make_tensor_value_info(name, F32, None) for name in self.outputs if name]
        graph = helper.make_graph([node], "case", declared, outputs)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, sizes, random):
        b, n, m, p = sizes
        known = {"b": self.batch or b, "n": n, "m": m, "p": p}
        feeds = {}
        for name, axes, element in filter(None, self.inputs):
            shape = [axis if isinstance(axis, int) else eval(axis, known) for axis in axes]
            keys = known["m"] if any(x and "m" in x[1] for x in self.inputs) else n
            if element == F32:
                array = 0.5 * random.standard_normal(shape)
            elif element == BOOL or len(shape) > 1:
                array = random.random(shape) < 0.7
                array[..., :1] = True
            else:
                # Ends of sequences; the second part, if there is one, has their starts.
                array = random.integers(1, keys + 1, shape)
                if axes[0] == "2*b":
                    half = shape[0] // 2
                    array[half:] = random.integers(0, array[:half])
            feeds[name] = np.ascontiguousarray(array, TYPES[element])
        return feeds


def heads_of(x, heads):
    """Returns a tensor with the axes batch, heads, tokens and dim."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def padding(mask, batch, keys):
    """Returns whether keys are attended, with the axes batch, 1, queries or 1, and keys."""
    if mask.ndim == 1:
        at = np.arange(keys)
        keeps = at < mask[:batch, None]
        if len(mask) == 2 * batch:
            keeps &= at >= mask[batch:, None]
        return keeps[:, None, None]
    if mask.ndim == 2:
        return np.ones((batch, 1, 1, keys), bool) if mask.shape[1] == 1 else (mask > 0)[:, None, None]
    return (mask > 0)[:, None]


def answers(case, feeds):
    """Returns the outputs of the node by its definition, in f64."""
    given = [feeds[x[0]] if x else None for x in case.inputs] + [None] * 8
    wide = [x.astype(np.float64) if x is not None and x.dtype == np.float32 else x for x in given]
    own, projected = case.domain == "", case.domain != "" and case.op == "Attention"
    bias, pad, mask, past, lengths = None, None, wide[5], (wide[6], wide[7]), None
    if projected:
        rows = wide[0] @ wide[1] + wide[2]
        sizes = case.attributes.get("qkv_hidden_sizes", [rows.shape[2] // 3] * 3)
        q, k, v = np.split(rows, np.cumsum(sizes)[:2], axis=2)
        pad, past = wide[3], (None, None) if wide[4] is None else tuple(wide[4])
    elif own:
        (q, k, v, mask), past, lengths = wide[:4], (wide[4], wide[5]), wide[6]
    else:
        q, k, v, bias, pad = wide[:5]
        if q.ndim == 5:
            q, k, v = (q[:, :, :, i].reshape(*q.shape[:2], -1) for i in range(3))
        elif k.ndim == 5:
            k, v = (k[:, :, :, i].reshape(*k.shape[:2], -1) for i in range(2))
        if bias is not None:
            # Keys and values with an axis of heads already contain their bias.
            parts = [part if x.ndim == 3 else 0 for x, part in zip((q, k, v), np.split(bias, 3))]
            q, k, v = (x + part for x, part in zip((q, k, v), parts))
    rank = q.ndim
    kv_heads = case.attributes.get("kv_num_heads", HEADS)
    q, k, v = heads_of(q, HEADS), heads_of(k, kv_heads), heads_of(v, kv_heads)
    before = 0
    if past[0] is not None:
        before = past[0].shape[2]
        k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
    batch, heads, n, dim = q.shape
    keys = k.shape[2]
    whole_k, whole_v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = q @ whole_k.transpose(0, 1, 3, 2) * case.attributes.get("scale", dim**-0.5)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if pad is not None:
        scores = scores + np.where(padding(pad, batch, keys), 0, case.attributes.get("mask_filter_value", -10000.0))
    if case.attributes.get("is_causal", case.attributes.get("unidirectional", 0)):
        scores = np.where(np.arange(keys) <= np.arange(n)[:, None] + before, scores, -np.inf)
    if lengths is not None:
        scores = np.where(np.arange(keys) < lengths[:, None, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y = weights / weights.sum(axis=-1, keepdims=True) @ whole_v
    if rank == 3:
        y = y.transpose(0, 2, 1, 3).reshape(batch, n, -1)
    # Values that are wider than keys have no present state.
    present = [np.stack([k, v])] if projected and k.shape == v.shape else [k, v]
    return [x for x, name in zip([y, *present], case.outputs) if name]


def rows(m="m", kv=WIDTH):
    return [("q", ["b", "n", WIDTH], F32), ("k", ["b", m, kv], F32), ("v", ["b", m, kv], F32)]


def weighted(*more, width=3 * WIDTH):
    return [("x", ["b", "n", 8], F32), ("w", [8, width], F32), ("c", [width], F32), *more]


def cases():
    mha, own = "MultiHeadAttention", "Attention"
    one = dict(num_heads=HEADS)
    index = lambda *axes: ("mask", list(axes), I32)
    cache = [("a", ["b", HEADS, "p", DIM], F32), ("e", ["b", HEADS, "p", DIM], F32)]
    both = ("past", [2, "b", HEADS, "p", DIM], F32)
    bias = ("c", [3 * WIDTH], F32)
    three = ("y", "present_k", "present_v")
    whole = dict(q_num_heads=HEADS, kv_num_heads=HEADS)

    for opset in (12, 17):
        yield Case("weights, opset %d" % opset, own, weighted(), opset=opset, **one)
        for axes, batch in ((["b"], None), (["2*b"], 2), (["b", "n"], None), (["b", "n", "n"], None), (["b", 1], None)):
            name = "weights, mask_index %s, opset %d" % (axes, opset)
            yield Case(name, own, weighted(index(*axes)), batch=batch, opset=opset, **one)
    yield Case("weights, causal", own, weighted(index("b", "n")), opset=17, unidirectional=1, **one)
    yield Case("weights, another fill", own, weighted(index("b", "n")), opset=17, mask_filter_value=-30.0, **one)
    yield Case("weights, scale", own, weighted(), opset=17, scale=0.3, **one)
    added = ("added", ["b", HEADS, "n", "n"], F32)
    yield Case("weights, added", own, weighted(index("b", "n"), None, added), opset=17, **one)
    yield Case("weights, wider values", own, weighted(width=4 * WIDTH), opset=17,
               qkv_hidden_sizes=[WIDTH, WIDTH, 2 * WIDTH], **one)
    yield Case("weights, present", own, weighted(), ("y", "present"), opset=17, **one)
    for causal in (0, 1):
        yield Case("weights, past, causal %d" % causal, own, weighted(index("b", "p + n"), both), ("y", "present"),
                   opset=17, unidirectional=causal, **one)
    yield Case("weights, rotary", own, weighted(), opset=17, stays="it rotates queries and keys", do_rotary=1, **one)

    yield Case("bias", mha, [*rows(), bias], opset=17, **one)
    yield Case("bias, padding, added", mha, [*rows(), bias, ("pad", ["b", "m"], I32),
                                             ("added", [1, HEADS, "n", "m"], F32)], opset=17, **one)
    yield Case("padding by lengths", mha, [*rows(), None, ("pad", ["b"], I32)], opset=17, **one)
    yield Case("padding of queries", mha, [*rows(), None, ("pad", ["b", "n", "m"], I32)], opset=17, **one)
    for causal in (0, 1):
        yield Case("past, causal %d" % causal, mha, [*rows("n"), bias, None, None, *cache], three, opset=17,
                   unidirectional=causal, **one)
    yield Case("past, padding", mha, [*rows("n"), None, ("pad", ["b", "p + n"], I32), None, *cache], three, opset=17,
               **one)
    yield Case("present", mha, rows(), three, opset=17, **one)
    keys = [(name, ["b", HEADS, "m", DIM], F32) for name in "kv"]
    yield Case("heads of keys", mha, [rows()[0], *keys], opset=17, **one)
    yield Case("heads of keys, bias", mha, [rows()[0], *keys, bias], opset=17, **one)
    yield Case("packed keys", mha, [rows()[0], ("k", ["b", "m", HEADS, 2, DIM], F32)], opset=17, **one)
    yield Case("packed", mha, [("q", ["b", "n", HEADS, 3, DIM], F32)], opset=17, **one)
    yield Case("packed, bias", mha, [("q", ["b", "n", HEADS, 3, DIM], F32), None, None, bias], opset=17, **one)

    yield Case("ONNX, present", own, rows(), three, **whole)
    for causal in (0, 1):
        yield Case("ONNX, past, causal %d" % causal, own, [*rows("n"), None, *cache], three, is_causal=causal, **whole)
    grouped = [(name, ["b", 1, "p", DIM], F32) for name in "ae"]
    yield Case("ONNX, past, one KV head", own, [*rows("n", kv=DIM), None, *grouped], three, is_causal=1, q_num_heads=HEADS,
               kv_num_heads=1)
    yield Case("ONNX, past, mask", own, [*rows("n"), ("mask", ["n", "p + n"], BOOL), *cache], three, **whole)
    lengths = ("lengths", ["b"], I64)
    yield Case("ONNX, lengths", own, [*rows(), None, None, None, lengths], opset=24, **whole)
    yield Case("ONNX, lengths, mask", own, [*rows(), ("mask", ["n", "m"], F32), None, None, lengths], opset=24, **whole)
    yield Case("ONNX, lengths, causal", own, [*rows(), None, None, None, lengths], opset=24, is_causal=1,
               stays="disagree on the diagonal", **whole)
    yield Case("ONNX, scores", own, rows(), ("y", "", "", "scores"), stays="which the operator does not return",
               **whole)


def difference(found, wants):
    """Returns what is wrong with the outputs `found`, if anything is."""
    for found, want in zip(found, wants):
        if found.shape != want.shape:
            return "shape %s; allowed: %s" % (found.shape, want.shape)
        error = np.abs(found - want).max() / max(1.0, np.abs(want).max())
        if not error <= ALLOWED:
            return "error %.1e; allowed: %.1e" % (error, ALLOWED)
    return None


def judge(case, runtime, tool, folder):
    """Returns a remark about a case that passes; raises an error for any other."""
    source, target = (os.path.join(folder, name) for name in ("in.onnx", "out.onnx"))
    with open(source, "wb") as file:
        file.write(case.model().SerializeToString())
    said, fault = rewrite(tool, source, target)
    assert not fault, fault
    (attention,) = said
    words = attention["words"]
    if case.stays:
        assert not attention["replaced"] and case.stays in words, words
        return words
    assert attention["replaced"], words
    changed, remark, compared = runtime.session(target), "", 0
    try:
        original = runtime.session(source)
    except Exception as e:
        assert any(part in str(e) for part in UNSUPPORTED), str(e)
        original = None
    for at, sizes in enumerate(SIZES):
        feeds = case.feeds(sizes, np.random.default_rng(at))
        wants = answers(case, feeds)
        fault = difference(changed.run(None, feeds), wants)
        assert not fault, "at %s: %s" % (sizes, fault)
        if original is None:
            continue
        try:
            found = original.run(None, feeds)
        except Exception as e:
            assert any(part in str(e) for part in UNSUPPORTED), str(e)
            original = None
            continue
        fault = difference(found, wants)
        assert not fault, "the original at %s: %s" % (sizes, fault)
        compared += 1
    return "%s, %d sizes, the original at %d" % (words, len(SIZES), compared)


def main(library, tool):
    runtime, failed = Runtime(os.path.abspath(library)), 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            try:
                print("ok: %s: %s" % (case.name, judge(case, runtime, tool, folder)), flush=True)
            except Exception as e:
                failed += 1
                print("FAILED: %s: %s" % (case.name, " ".join(str(e).split())[:400]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
