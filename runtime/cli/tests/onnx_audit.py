"""`elsa onnx audit`: onnx_audit.py TOOL LIBRARY [RUNTIME]

Models with planted overflows. Each must be found and named, and the named nodes must suffice: the model that the
converter of ONNX Runtime makes with these nodes in f32 is evaluated by onnx.reference, which computes in f16."""

import copy
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

TOOL, LIBRARY = (os.path.abspath(path) for path in sys.argv[1:3])
RUNTIME = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None


def model(nodes, inputs, outputs, constants=(), unnamed=False):
    made = []
    for op, reads, makes, attributes in nodes:
        node = helper.make_node(op, reads.split(), makes.split(), **attributes)
        node.name = "" if unnamed else "the " + node.output[0]
        made.append(node)
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    graph = helper.make_graph(made, "g", [info(*item) for item in inputs.items()],
                              [info(*item) for item in outputs.items()], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def attention(unnamed=False):
    nodes = [
        ("Transpose", "k", "t", dict(perm=[0, 1, 3, 2])),
        ("MatMul", "q t", "s", {}),
        ("Add", "s mask", "m", {}),
        ("Softmax", "m", "w", dict(axis=-1)),
        ("MatMul", "w v", "z", {}),
        ("Relu", "z", "y", {}),
    ]
    shape = ["b", 2, "n", 8]
    lowest = np.zeros((1, 1, 1, 5), np.float32)
    lowest[..., -1] = np.finfo(np.float32).min
    return model(nodes, dict(q=shape, k=shape, v=shape), dict(y=shape), dict(mask=lowest), unnamed)


def operands(size):
    """Queries and keys of whole numbers, so that f16 changes no score unless it overflows. The largest is 8 size^2."""
    random = np.random.default_rng(1)
    q = (np.sign(random.standard_normal((1, 2, 5, 8))) * size).astype(np.float32)
    return dict(q=q, k=q[:, :, ::-1].copy(), v=random.standard_normal((1, 2, 5, 8)).astype(np.float32))


def written_norm():
    nodes = [
        ("ReduceMean", "x", "mean", dict(axes=[-1])),
        ("Sub", "x mean", "d", {}),
        ("Pow", "d two", "squares", {}),
        ("ReduceMean", "squares", "variance", dict(axes=[-1])),
        ("Add", "variance eps", "a", {}),
        ("Sqrt", "a", "r", {}),
        ("Div", "d r", "n", {}),
        ("Mul", "n gamma", "y", {}),
    ]
    gamma = np.random.default_rng(2).standard_normal(64).astype(np.float32)
    constants = dict(two=np.float32(2), eps=np.float32(1e-5), gamma=gamma)
    return model(nodes, dict(x=[1, 8, 64]), dict(y=[1, 8, 64]), constants)


def single_norm():
    constants = dict(gamma=np.ones(1024, np.float32), beta=np.zeros(1024, np.float32))
    nodes = [("LayerNormalization", "x gamma beta", "n", dict(axis=-1)), ("Relu", "n", "y", {})]
    return model(nodes, dict(x=[4, 1024]), dict(y=[4, 1024]), constants)


def linear_attention():
    """Attention with ReLU as its feature map, divided by the normaliser `den`."""
    nodes = [
        ("Relu", "q", "rq", {}),
        ("Relu", "k", "rk", {}),
        ("Transpose", "rk", "kt", dict(perm=[0, 2, 1])),
        ("MatMul", "kt v", "kv", {}),
        ("ReduceSum", "rk axes", "ks", dict(keepdims=1)),
        ("Transpose", "ks", "kst", dict(perm=[0, 2, 1])),
        ("MatMul", "rq kv", "num", {}),
        ("MatMul", "rq kst", "den", {}),
        ("Div", "num den", "y", {}),
    ]
    shape = [1, 512, 16]
    return model(nodes, dict(q=shape, k=shape, v=shape), dict(y=shape), dict(axes=np.array([1], np.int64)))


class Desk:
    def __init__(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def audit(self, made, tensors, *flags, status=0, **saved):
        onnx.save(made, self.path("in.onnx"), **saved)
        np.savez(self.path("in.npz"), **tensors)
        before = sorted(os.listdir(self.folder))
        given = ["--input", self.path("in.npz")] if tensors else []
        line = [TOOL, "onnx", "audit", self.path("in.onnx"), "--json", "--operator", LIBRARY, *given, *flags]
        line += ["--runtime", RUNTIME] if RUNTIME else []
        clean = {name: value for name, value in os.environ.items() if name != "ELSA_ONNXRUNTIME"}
        clean["PATH"] = os.path.dirname(sys.executable) + os.pathsep + clean.get("PATH", "")
        ran = subprocess.run(line, capture_output=True, text=True, env=clean, timeout=100)
        assert ran.returncode == status, (ran.returncode, ran.stderr)
        left = [name for name in sorted(os.listdir(self.folder)) if not name.endswith(".html")]
        assert left == before, left
        return (json.loads(ran.stdout) if ran.stdout else None), ran.stderr


def site(found, node):
    named, = [site for site in found["sites"] if site["node"] == node]
    return named


def error(wanted, found):
    """The norm of the differences relative to the norm; infinite if an element is not finite."""
    found = found.astype(np.float64)
    if not np.isfinite(found).all():
        return np.inf
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def joined(made):
    """Removes the Casts to f16 and back between two kept nodes, which the converter inserts, and sorts the nodes."""
    made = copy.deepcopy(made)
    graph = made.graph
    to = lambda node: node.attribute[0].i if node.op_type == "Cast" else None
    halved = {node.output[0]: node.input[0] for node in graph.node if to(node) == TensorProto.FLOAT16}
    made_here = {value for node in graph.node if node.op_type != "Cast" for value in node.output}
    same = {node.output[0]: halved[node.input[0]] for node in graph.node
            if to(node) == TensorProto.FLOAT and node.input[0] in halved and halved[node.input[0]] in made_here}
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
    known = {value.name for value in [*graph.input, *graph.initializer]} | {""}
    left = list(graph.node)
    del graph.node[:]
    while left:
        node = next(node for node in left if set(node.input) <= known)
        left.remove(node)
        known.update(node.output)
        graph.node.append(node)
    return made


def suffices(made, tensors, found):
    """The kept nodes repair the model in f16, which is broken without them."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    run = lambda model: ReferenceEvaluator(joined(model)).run(None, tensors)[0]
    convert = lambda kept: convert_float_to_float16(copy.deepcopy(made), keep_io_types=True, node_block_list=kept)
    with np.errstate(all="ignore"):
        wanted = run(made)
        naive, kept = (error(wanted, run(convert(names))) for names in ([], found["node_block_list"]))
    assert naive > 0.1 and kept < 1e-2, (naive, kept)
    assert found["kept"] < 1e-2, found["kept"]


def healthy(desk):
    found, said = desk.audit(attention(), operands(1))
    assert not said and not found["breaks"] and found["keep"] == [], (said, found)
    assert 0 < found["all"] < 1e-2 and found["trtexec"] == "" and found["random"] == [], found
    softmax = site(found, "the w")
    assert softmax["kind"] == "attention" and softmax["scores"] == 8.0, softmax
    assert softmax["nodes"] == ["the s", "the m", "the w", "the z"] and softmax["sum"] == 8.0, softmax
    assert softmax["stored"] < 1e-3 and softmax["accumulated"] < 1e-2 and softmax["replaceable"], softmax


def scores(desk):
    made, tensors = attention(), operands(120)
    found, said = desk.audit(made, tensors, status=4)
    softmax = site(found, "the w")
    assert softmax["scores"] == 115200.0 and softmax["stored"] == softmax["harm"] == "inf", softmax
    assert softmax["keep"] and found["all"] == "inf" and found["replace"] == ["the w"], found
    assert [found["sites"][at]["node"] for at in found["keep"]] == ["the w"], found["keep"]
    assert "the s:fp32,the m:fp32,the w:fp32,the z:fp32" in found["trtexec"], found["trtexec"]
    assert "--precisionConstraints=obey" in found["trtexec"], found["trtexec"]
    assert "half precision breaks IN" in said and "first the w" in said, said
    suffices(made, tensors, found)


def squares(desk):
    made = written_norm()
    tensors = dict(x=(300 * np.random.default_rng(3).standard_normal((1, 8, 64))).astype(np.float32))
    found, _ = desk.audit(made, tensors, status=4)
    norm = site(found, "the variance")
    assert norm["kind"] == "normalisation" and norm["nodes"][0] == "the squares", norm
    centred = tensors["x"].astype(np.float64)
    centred = centred - centred.mean(-1, keepdims=True)
    assert abs(norm["sum"] / (centred**2).sum(-1).max() - 1) < 1e-5, norm
    # The square root of inf is NaN in some versions of ONNX Runtime, and the error is then inf.
    assert norm["stored"] == norm["accumulated"] == "inf" and float(norm["harm"]) > 0.1, norm
    assert [found["sites"][at]["node"] for at in found["keep"]] == ["the variance"], found["keep"]
    suffices(made, tensors, found)


def squares_within(desk):
    """A normalisation in one node: its inputs and outputs fit in f16, but the sum of squares does not."""
    x = (30 * np.random.default_rng(4).standard_normal((4, 1024))).astype(np.float32)
    found, _ = desk.audit(single_norm(), dict(x=x), status=4)
    norm = site(found, "the n")
    assert norm["kind"] == "normalisation" and norm["sum"] > 65504 and norm["accumulated"] == "inf", norm
    assert norm["stored"] < 1e-3 and norm["harm"] < 1e-2 and found["all"] < 1e-2, (norm, found["all"])
    assert found["node_block_list"] == ["the n"], found["node_block_list"]


def normaliser(desk):
    made, random = linear_attention(), np.random.default_rng(5)
    draw = lambda size: (size * random.standard_normal((1, 512, 16))).astype(np.float32)
    tensors = dict(q=draw(10), k=draw(10), v=draw(1))
    found, _ = desk.audit(made, tensors, status=4)
    product = site(found, "the den")
    assert product["kind"] == "product" and product["output"] > 65504 and product["stored"] == "inf", product
    assert set(found["node_block_list"]) == {"the den", "the y"}, found["node_block_list"]
    assert not site(found, "the num")["keep"]
    suffices(made, tensors, found)


def near(a, b):
    """Equal, except for the rounding of numbers."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-3 * max(abs(a), abs(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(near(*pair) for pair in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(near(a[name], b[name]) for name in a)
    return a == b


def slices(desk):
    """The results do not depend on the number of runs."""
    for made, tensors, status in [(attention(), operands(120), 4), (attention(), operands(1), 0)]:
        whole, _ = desk.audit(made, tensors, status=status)
        parts, _ = desk.audit(made, tensors, "--budget", "1", status=status)
        assert near(whole["sites"], parts["sites"]), (whole["sites"], parts["sites"])


def weights_beside(desk):
    made = written_norm()
    tensors = dict(x=np.random.default_rng(3).standard_normal((1, 8, 64)).astype(np.float32))
    saved = dict(save_as_external_data=True, location="in.data", size_threshold=0)
    found, _ = desk.audit(made, tensors, **saved)
    assert not found["breaks"] and found["all"] < 1e-2, found


def random_inputs(desk):
    found, said = desk.audit(linear_attention(), {})
    assert found["random"] == ["q", "k", "v"] and "warning: random numbers for q, k, v" in said, said
    assert not found["breaks"] and site(found, "the den")["output"] > 100, found


def unnamed_nodes(desk):
    found, _ = desk.audit(attention(unnamed=True), operands(120), status=4)
    assert any("have no name" in note for note in found["notes"]), found["notes"]


def page(desk):
    found, said = desk.audit(attention(), operands(120), "--html", desk.path("page.html"), status=4)
    with open(desk.path("page.html")) as file:
        text = file.read()
    assert "f16 breaks" in text and "<rect" in text and "the w" in text and "wrote" in said, said


def wrong_inputs(desk):
    for flags, words in [
        (["--input", "x=" + desk.path("in.npz") + "#q"], ["--input: 'x', which is no input", "q, k, v"]),
        (["--input", "q=" + desk.path("in.npz") + "#k3"], ["--input: ", "k3"]),
        (["--tolerance", "2"], ["--tolerance"]),
        (["--html", desk.path("in.npz")], ["--html: ", "which --input reads"]),
    ]:
        found, said = desk.audit(attention(), operands(1), *flags, status=2)
        assert found is None and all(word in said for word in words), said
    three = dict(operands(1), q=np.ones((1, 3, 5, 8), np.float32))
    found, said = desk.audit(attention(), three, status=2)
    assert found is None and "'q' of [1, 3, 5, 8]; allowed: [b, 2, n, 8]" in said, said


def main():
    failed = 0
    for case in [healthy, scores, squares, squares_within, normaliser, slices, weights_beside, random_inputs,
                 unnamed_nodes, page, wrong_inputs]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(Desk(folder))
                print("ok: %s" % case.__name__)
            except Exception as e:
                failed += 1
                print("FAILED: %s: %s" % (case.__name__, " ".join(str(e).split())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
