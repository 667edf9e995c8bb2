"""The node cases of ONNX's own operator Attention, through ElsaAttention: attention.py LIBRARY

Every case of the package onnx whose node is Attention is rewritten to ElsaAttention and run in ONNX Runtime on the case's
own tensors. Cases that the operator cannot express are named. The right answer is ONNX's reference implementation in f64."""

import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.backend.test.case import node as cases
from onnx.backend.test.case.node import attention as _  # Fills the list of cases.
from onnx.reference.ops.op_attention import _compute_attention

# Arguments of the reference, in the order of the operator's inputs.
NAMES = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]


def refused(case, attributes):
    """Returns why the operator cannot express a case; None if it can."""
    if any(x is not None and x.dtype.name == "bfloat16" for x in case.inputs):
        return "bf16"
    window = (attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)) != (-1, -1)
    if window and case.inputs[6] is not None and not attributes.get("is_causal"):
        return "window with lengths, not causal"
    return None


class Case:
    def __init__(self, case):
        node = case.model.graph.node[0]
        self.name = case.name
        (tensors, _) = case.data_sets[0]
        tensors = iter([getattr(x, "numpy_array", x) for x in tensors])
        given = [next(tensors) if name else None for name in node.input]
        self.inputs = given + [None] * (7 - len(given))
        self.outputs = list(node.output)
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}


def rewritten(case):
    a = case.attributes
    attributes = {}
    for old, new in [("q_num_heads", "num_heads"), ("kv_num_heads", "kv_num_heads"), ("scale", "scale"),
                     ("is_causal", "is_causal"), ("softcap", "softcap")]:
        if old in a:
            attributes[new] = a[old]
    if "left_window_size" in a or "right_window_size" in a:
        attributes["window"] = [a.get("left_window_size", -1), a.get("right_window_size", -1)]
    q, k, v, mask, past_key, past_value, lengths = case.inputs
    order = dict(Q=q, K=k, V=v, mask=mask, bias_table=None, past_key=past_key, past_value=past_value, kv_lengths=lengths)
    names = [name if x is not None else "" for name, x in order.items()]
    while not names[-1]:
        names.pop()
    outputs = [new if old else "" for old, new in zip(case.outputs, ["Y", "present_key", "present_value"])]
    node = helper.make_node("ElsaAttention", names, outputs, domain="ai.elsa", **attributes)
    feeds = {name: x for name, x in order.items() if x is not None}
    value = lambda name, x: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), None)
    graph = helper.make_graph([node], "case", [value(name, x) for name, x in feeds.items()],
                              [value(name, q) for name in outputs if name])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.elsa", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds, outputs


def reference(case):
    wide = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in case.inputs]
    options = dict(case.attributes)
    for other in ["softmax_precision", "qk_matmul_output_mode"]:
        options.pop(other, None)
    return _compute_attention(**dict(zip(NAMES, wide)), **options, _validate_attention25=False)


def check(case, library):
    model, feeds, outputs = rewritten(case)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = dict(zip([name for name in outputs if name], session.run(None, feeds)))
    wants = reference(case)
    unit = 2.0**-11 if case.inputs[0].dtype == np.float16 else 2.0**-24
    # Rounding of the output, and of f32 sums, relative to the values: weights sum to one.
    finite = np.abs(wants[2].astype(np.float64))
    size = finite[np.isfinite(finite)].max(initial=0.0)
    allowed = unit * size + 2.0**-24 * (16 + 8 * case.inputs[0].shape[-1]) * size
    for name, want in zip(["Y", "present_key", "present_value"], wants):
        if name not in found:
            continue
        if found[name].shape != want.shape:
            return "%s: shape %s; allowed: %s" % (name, found[name].shape, want.shape)
        error = np.abs(found[name].astype(np.float64) - want).max()
        if name == "Y" and not error <= allowed:
            return "Y: error %.1e; allowed: %.1e" % (error, allowed)
        if name != "Y" and not np.array_equal(found[name].astype(np.float64), want, equal_nan=True):
            return "%s: not a copy" % name
    return None


def main(library):
    failed, passed, named, without = 0, 0, [], 0
    for raw in cases._NodeTestCases:
        nodes = raw.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != "Attention" or raw.name.endswith("_expanded"):
            continue
        case = Case(raw)
        why = refused(case, case.attributes)
        if why:
            named.append("%s (%s)" % (case.name, why))
            continue
        try:
            fault = check(case, library)
        except Exception as e:
            fault = str(e)
        if fault:
            failed += 1
            print("FAILED: %s: %s" % (case.name, fault))
        else:
            passed += 1
            scores = len(case.outputs) > 3 and case.outputs[3]
            without += bool(scores)
            print("ok: %s%s" % (case.name, " (without qk_matmul_output)" if scores else ""))
    # Every session has ended, but engines serve the whole process.
    with open("/proc/self/maps") as maps:
        if os.path.realpath(library) not in maps.read():
            failed += 1
            print("FAILED: the library was unloaded with its last session")
    print("onnx %s, ONNX Runtime %s: %d cases, %d of them without qk_matmul_output; %d not expressed: %s" % (
        onnx.__version__, onnxruntime.__version__, passed + failed, without, len(named), ", ".join(named)))
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
