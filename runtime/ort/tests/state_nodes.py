"""Nodes that keep a state, original and rewritten, in ONNX Runtime: state_nodes.py LIBRARY TOOL

Each case is a model of one node `LinearAttention` or `CausalConvWithState`. The cases are those of the package onnx,
and those that runtime/cli/tests computes by the tool. `elsa onnx rewrite` must replace the node. The answers of the
rewritten model are compared with the definition in f64, or with the case's own outputs. Those of the original are
compared too, if its tensors are f32 and the runtime has a kernel for it. Other cases are linear attention that is written
as matrix products."""

import os
import sys
import tempfile

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as node_cases
from random_models import Runtime, rewrite

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cli", "tests"))
import linear_attention  # noqa: E402
import linear_series  # noqa: E402

MICROSOFT = "com.microsoft"
# Allowed error of products relative to the largest answer: rounding of sums, and of the decay to f32.
ALLOWED = 1e-5
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def model(op, domain, inputs, axes, outputs, attributes):
    """Returns a model of one node. `inputs` are arrays by name, None if absent; `axes` their declared axes."""
    names = [name if inputs[name] is not None else "" for name in inputs]
    node = helper.make_node(op, names, [name for name, _ in outputs], domain=domain, **attributes)
    given = [helper.make_tensor_value_info(name, TYPES[str(inputs[name].dtype)], axes[name]) for name in names if name]
    made = [helper.make_tensor_value_info(name, TYPES[kind], None) for name, kind in outputs]
    graph = helper.make_graph([node], "case", given, made)
    opsets = [("", 17), (MICROSOFT, 1)] if domain else [("", 27)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*opset) for opset in opsets], ir_version=8)


def attentions():
    """Yields linear attentions: name, operator, inputs, axes, types of the outputs, attributes, and the comparison."""
    mine = linear_attention
    given = [mine.of_onnx(raw) for raw in node_cases._NodeTestCases if len(raw.model.graph.node) == 1
             and raw.model.graph.node[0].op_type == "LinearAttention"]  # fmt: skip
    for case in given + list(mine.made()):
        inputs = case.tensors
        axes = {name: ["b", "n", x.shape[2]] if x.ndim == 3 else ["b", *x.shape[1:]]
                for name, x in inputs.items() if x is not None}  # fmt: skip
        kind = str(inputs["query"].dtype)
        state = kind if inputs["past_state"] is None else str(inputs["past_state"].dtype)
        if not {kind, state} <= set(TYPES):
            continue
        attributes = {"update_rule": case.rule, "q_num_heads": case.heads, "kv_num_heads": case.states}
        if case.explicit:
            attributes["scale"] = float(case.explicit)
        exact = case.exact()
        # A present state in f16 is rounded to f16.
        also = 2.0**-10 if "float16" in (kind, state) else 0.0
        compare = lambda what, found, case=case, exact=exact, also=also: mine.differs(what, found, exact, case, also)
        yield case.name, "LinearAttention", inputs, axes, [kind, state], attributes, compare


def convolutions():
    """Yields convolutions in the same form."""
    for raw in node_cases._NodeTestCases:
        graph = raw.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type != "CausalConvWithState":
            continue
        node, (arrays, wanted) = graph.node[0], raw.data_sets[0]
        arrays, wanted = ([getattr(x, "numpy_array", x) for x in side] for side in (arrays, wanted))
        given = iter(arrays)
        inputs = {name: next(given) if at < len(node.input) and node.input[at] else None
                  for at, name in enumerate(linear_series.INPUTS)}  # fmt: skip
        if str(inputs["input"].dtype) not in TYPES:
            continue
        axes = {"input": ["b", inputs["input"].shape[1], "n"]}
        for name in ("weight", "bias", "past_state"):
            if inputs[name] is not None:
                shape = inputs[name].shape
                axes[name] = ["b", *shape[1:]] if name == "past_state" else shape
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        sums = 8 + inputs["weight"].shape[2]
        compare = lambda what, found, wanted=wanted, sums=sums: linear_series.differs(what, found, wanted, sums)
        yield raw.name, "CausalConvWithState", inputs, axes, [str(inputs["input"].dtype)] * 2, attributes, compare


def products():
    """Yields linear attention that is written as matrix products: name, model, inputs, and the answer in f64."""
    random = np.random.default_rng(44)
    cases = [("a sum over all keys", 2, 37, None), ("one token", 1, 1, None), ("a decay by distance", 2, 37, [0.9, 0.99, 1])]
    for name, batch, tokens, decays in cases:
        feeds = {part: 0.5 * random.standard_normal((batch, 3, tokens, dim)) for part, dim in zip("qkv", (8, 8, 5))}
        feeds = {part: x.astype(np.float32) for part, x in feeds.items()}
        nodes, constants, kept = [helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2])], [], 1
        if decays is None:
            nodes.append(helper.make_node("MatMul", ["turned", "v"], ["sums"]))
            nodes.append(helper.make_node("MatMul", ["q", "sums"], ["y"]))
        else:
            apart = np.subtract.outer(np.arange(tokens), np.arange(tokens))
            kept = np.array(decays)[:, None, None] ** np.maximum(apart, 0) * (apart >= 0)
            constants.append(numpy_helper.from_array(kept.astype(np.float32), "kept"))
            nodes.append(helper.make_node("MatMul", ["q", "turned"], ["scores"]))
            nodes.append(helper.make_node("Mul", ["scores", "kept"], ["weights"]))
            nodes.append(helper.make_node("MatMul", ["weights", "v"], ["y"]))
        axes = lambda x: [*(["b", 3, "n"] if decays is None else x.shape[:3]), x.shape[3]]
        given = [helper.make_tensor_value_info(part, TensorProto.FLOAT, axes(x)) for part, x in feeds.items()]
        made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(nodes, "case", given, made, constants)
        q, k, v = (feeds[part].astype(np.float64) for part in "qkv")
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        yield "products: " + name, made, feeds, ((q @ k.swapaxes(2, 3)) * kept) @ v


def judge_products(case, runtime, tool, folder):
    """Returns a remark about a case of `products` that passes; raises an error for any other."""
    _, made, feeds, wanted = case
    source, target = (os.path.join(folder, name) for name in ("in.onnx", "out.onnx"))
    with open(source, "wb") as file:
        file.write(made.SerializeToString())
    said, fault = rewrite(tool, source, target)
    assert not fault, fault
    (found,) = said
    assert found["replaced"], found["words"]
    for what, path in [("original", source), ("rewritten", target)]:
        (answer,) = runtime.session(path).run(None, feeds)
        error = np.abs(answer - wanted).max() / np.abs(wanted).max()
        assert error <= ALLOWED, "the %s model has an error of %.1e; allowed: %.0e" % (what, error, ALLOWED)
    return found["words"]


def answers(runtime, path, feeds):
    """Returns the outputs of a model, or None if the runtime has no kernel for it."""
    try:
        return runtime.session(path).run(None, feeds)
    except Exception:
        return None


def judge(case, domain, runtime, tool, folder):
    """Returns a remark about a case that passes; raises an error for any other."""
    _, op, inputs, axes, kinds, attributes, compare = case
    source, target = (os.path.join(folder, name) for name in ("in.onnx", "out.onnx"))
    outputs = list(zip(["out", "present"], kinds))
    with open(source, "wb") as file:
        file.write(model(op, domain, inputs, axes, outputs, attributes).SerializeToString())
    said, fault = rewrite(tool, source, target)
    assert not fault, fault
    (found,) = said
    assert found["replaced"], found["words"]
    feeds = {name: x for name, x in inputs.items() if x is not None}
    before = answers(runtime, source, feeds) if set(kinds) == {"float32"} else None
    fault = before and compare("the original", before)
    assert not fault, fault
    after = runtime.session(target).run(None, feeds) if domain else answers(runtime, target, feeds)
    if not domain and after is None:
        # A runtime that does not know opset 27 loads no model of it.
        return found["words"] + ", not run"
    fault = compare("the rewritten model", after)
    assert not fault, fault
    return found["words"] + (", the original too" if before else "")


def main(library, tool):
    runtime, failed, count = Runtime(os.path.abspath(library)), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        nodes = [(case, domain) for case in [*attentions(), *convolutions()] for domain in ("", MICROSOFT)]
        for case, domain in nodes + [(case, None) for case in products()]:
            name, count = "%s%s" % (case[0], ", " + domain if domain else ""), count + 1
            try:
                if domain is None:
                    remark = judge_products(case, runtime, tool, folder)
                else:
                    remark = judge(case, domain, runtime, tool, folder)
                print("ok: %s: %s" % (name, remark), flush=True)
            except Exception as e:
                failed += 1
                print("FAILED: %s: %s" % (name, " ".join(str(e).split())[:400]), flush=True)
    return 0 if count and not failed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
