"""Models in the operators of older runtimes: lowered_models.py TOOL [--host COMMAND]

Each model has one operator with random shapes and attributes. `elsa onnx rewrite --target` lowers it for each target that
the runtime supports. The outputs are compared with the definition of the original operator in f64, in the newest ONNX
Runtime and in an older one: COMMAND starts the program examples/host with the libraries of the older runtime and of the
operator. `--count N` draws N models for each operator. The outputs of the original are compared too, if the newest runtime has a kernel for it.

Let u be 2^-24, the rounding of f32. An output may differ from f64 by u times the number of roundings of its formula, times
the size of its largest term: (32 + n) u for a normalization over n elements, 32 u for an activation, 8 u for a rotation,
(8 + n) u for a sum of n products. Operators that copy elements must not change them. An output in f16 may also differ by
its own rounding."""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

U = 2.0**-24
# Newest opset and version of the file format of each target, and the first runtime that must run it.
TARGETS = {"opset-13": (13, 7, 10), "tensorrt-8.2": (13, 7, 10), "onnxruntime-1.10": (15, 8, 10),
           "onnxruntime-1.11": (16, 8, 11)}
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64,
         np.dtype(np.float16): TensorProto.FLOAT16}
NUMBERS = {number: kind for kind, number in TYPES.items()}
# Messages of a runtime without a kernel for the original.
UNSUPPORTED = ("NOT_IMPLEMENTED", "not implemented", "Could not find an implementation", "not a registered",
               "is not supported", "guarantees support")


class Case:
    """A model of one operator. `wants` are its outputs in f64, and `allowed` their errors. `lowered` names the targets for
    which the operator is lowered; None means every target."""

    def __init__(self, op, opset, inputs, wants, allowed, constants=None, nodes=None, lowered=None, kinds=None,
                 **attributes):
        self.op, self.opset, self.inputs, self.wants = op, opset, inputs, wants
        self.constants, self.lowered = constants or {}, lowered
        self.outputs = ["y%d" % i for i in range(len(wants))]
        self.half = any(x.dtype == np.float16 for x in inputs.values())
        self.allowed = [np.broadcast_to(a, w.shape) for a, w in zip(allowed, wants)]
        if self.half:
            self.allowed = [a + 2.0**-11 * np.abs(w) + U for a, w in zip(self.allowed, wants)]
        # Types of the outputs, by default that of the first input.
        self.kinds = kinds or [next(iter(inputs.values())).dtype] * len(wants)
        names = attributes.pop("names", [*inputs, *self.constants])
        # Inputs without free axes.
        self.fixed = attributes.pop("fixed", ())
        self.nodes = nodes or [helper.make_node(op, names, self.outputs, **attributes)]

    def model(self, random):
        declared = []
        for name, x in self.inputs.items():
            # Axes are fixed or free.
            axes = [n if name in self.fixed or random.random() < 0.5 else "%s%d" % (name, i) for i, n in enumerate(x.shape)]
            declared.append(helper.make_tensor_value_info(name, TYPES[x.dtype], axes))
        outputs = [helper.make_tensor_value_info(name, TYPES[np.dtype(kind)], [None] * want.ndim)
                   for name, kind, want in zip(self.outputs, self.kinds, self.wants)]
        constants = [numpy_helper.from_array(x, name) for name, x in self.constants.items()]
        graph = helper.make_graph(self.nodes, "case", declared, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


def normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def kind(random):
    """Returns the type of a case: mostly f32, sometimes f16."""
    return np.float16 if random.random() < 0.25 else np.float32


def moments(x, axes, centres, epsilon):
    """Returns the normalized x, its mean, its inverse deviation, and the size of the terms of the normalized x."""
    mean = x.mean(axis=axes, keepdims=True) if centres else np.zeros((1,) * x.ndim)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse, np.abs(x).max(axis=axes, keepdims=True) * inverse


def layer(random):
    rank = int(random.integers(2, 5))
    shape = random.integers(1, 9, rank)
    shape[-1] += 3
    axis = int(random.integers(1, rank))
    epsilon = float(np.float32(random.choice([1e-5, 1e-3])))
    x = (normal(random, *shape) * 3 + normal(random, 1)).astype(kind(random))
    scale, bias = (normal(random, *shape[axis:]).astype(x.dtype) for _ in "sb")
    with_bias = random.random() < 0.7
    axes = tuple(range(axis, rank))
    wide = x.astype(np.float64)
    y, mean, inverse, size = moments(wide, axes, True, epsilon)
    want = y * scale.astype(np.float64) + (bias.astype(np.float64) if with_bias else 0)
    n = math.prod(shape[axis:])
    unit = (32 + n) * U
    allowed = unit * (np.abs(scale.astype(np.float64)) * (size + np.abs(y)) + np.abs(bias))
    inputs = {"x": x, "s": scale, **({"b": bias} if with_bias else {})}
    wants, bounds = [want], [allowed]
    if x.dtype == np.float32 and random.random() < 0.5:
        wants += [mean, inverse]
        bounds += [unit * np.abs(wide).max(axis=axes, keepdims=True), unit * inverse * (1 + (size * size))]
    return Case("LayerNormalization", 17, inputs, wants, bounds, epsilon=epsilon,
                axis=axis if random.random() < 0.5 else axis - rank)


def rms(random):
    shape = random.integers(1, 9, int(random.integers(1, 4))).tolist() + [int(random.integers(4, 40))]
    x, scale = normal(random, *shape).astype(kind(random)), normal(random, shape[-1])
    scale = scale.astype(x.dtype)
    y, _, _, size = moments(x.astype(np.float64), (-1,), False, float(np.float32(1e-5)))
    want = y * scale.astype(np.float64)
    return Case("RMSNormalization", 23, {"x": x, "s": scale}, [want],
                [(32 + shape[-1]) * U * np.abs(scale.astype(np.float64)) * (1 + size)], axis=-1)


def group(random):
    opset = int(random.choice([18, 21]))
    groups, per = int(random.integers(1, 5)), int(random.integers(1, 4))
    places = random.integers(1, 6, int(random.integers(1, 4))).tolist()
    x = normal(random, int(random.integers(1, 4)), groups * per, *places)
    count = groups * per if opset >= 21 else groups
    scale, bias = normal(random, count), normal(random, count)
    parts = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    y, _, _, size = moments(parts, (2,), True, float(np.float32(1e-5)))
    wide = lambda a: np.repeat(a.astype(np.float64), groups * per // count).reshape(-1, *(1 for _ in places))
    size = np.broadcast_to(size, y.shape).reshape(x.shape)
    want = y.reshape(x.shape) * wide(scale) + wide(bias)
    allowed = (32 + parts.shape[2]) * U * (np.abs(wide(scale)) * (size + np.abs(y.reshape(x.shape))) + np.abs(wide(bias)))
    return Case("GroupNormalization", opset, {"x": x, "s": scale, "b": bias}, [want], [allowed], num_groups=groups)


def activation(op, opset, f, lowered=None, types=kind, **attributes):
    def draw(random):
        x = (normal(random, *random.integers(1, 9, int(random.integers(1, 4)))) * 4).astype(types(random))
        given = {name: choose(random) for name, choose in attributes.items()}
        wide = x.astype(np.float64)
        return Case(op, opset, {"x": x}, [f(wide, **given)], [32 * U * np.maximum(1, np.abs(wide))], lowered=lowered, **given)
    return draw


def gelu(x, approximate):
    if approximate == "tanh":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def rotary(random):
    b, t, heads, half = (int(n) for n in random.integers(1, 6, 4))
    rest = int(random.choice([0, 0, 2, 3]))
    interleaved, rows = int(random.integers(2)), random.random() < 0.5
    rotated = 2 * half if rest or random.random() < 0.3 else 0
    dim = 2 * half + rest
    x = normal(random, b, heads, t, dim)
    inputs = {"x": x.transpose(0, 2, 1, 3).reshape(b, t, heads * dim) if rows else x}
    if random.random() < 0.5:
        cos, sin = normal(random, 11, half), normal(random, 11, half)
        at = random.integers(0, 11, (b, t))
        inputs.update(cos=cos, sin=sin, at=at)
        cos, sin = cos[at], sin[at]
    else:
        cos, sin = normal(random, b, t, half), normal(random, b, t, half)
        inputs.update(cos=cos, sin=sin)
    c, s, wide = cos.astype(np.float64)[:, None], sin.astype(np.float64)[:, None], x.astype(np.float64)
    a, e = (wide[..., 0:2 * half:2], wide[..., 1:2 * half:2]) if interleaved else (wide[..., :half], wide[..., half:2 * half])
    first, second = a * c - e * s, a * s + e * c
    turned = np.stack([first, second], axis=-1).reshape(b, heads, t, 2 * half) if interleaved else np.concatenate(
        [first, second], axis=-1)
    want = np.concatenate([turned, wide[..., 2 * half:]], axis=-1)
    if rows:
        want = want.transpose(0, 2, 1, 3).reshape(b, t, heads * dim)
    size = np.abs(wide).max() * (np.abs(cos).max() + np.abs(sin).max())
    given = dict(interleaved=interleaved, rotary_embedding_dim=rotated, **(dict(num_heads=heads) if rows else {}))
    # The size of the tables must be known if the model does not give the number of rotated elements.
    fixed = () if rotated else ("cos",)
    return Case("RotaryEmbedding", 23, inputs, [want], [8 * U * size], fixed=fixed, **given)


def einsum(random):
    equation = str(random.choice(["bhid,bhjd->bhij", "bihd,bjhd->bhij", "bhij,bjhd->bihd", "bhid,bjd->bhij"]))
    sizes = {letter: int(random.integers(1, 7)) for letter in "bhijd"}
    left, right = equation.split("->")[0].split(",")
    x, y = (normal(random, *(sizes[letter] for letter in part)) for part in (left, right))
    wide, other = x.astype(np.float64), y.astype(np.float64)
    n = sizes[({*left} & {*right} - {*equation.split("->")[1]}).pop()]
    allowed = (8 + n) * U * np.einsum(equation, np.abs(wide), np.abs(other))
    return Case("Einsum", 12, {"x": x, "k": y}, [np.einsum(equation, wide, other)], [allowed], equation=equation)


def chosen(random):
    taken = bool(random.integers(2))
    x = normal(random, int(random.integers(1, 5)), 3)
    output = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    branch = lambda name, op: helper.make_graph([helper.make_node(op, ["x"], ["inner"])], name, [], [output])
    node = helper.make_node("If", ["c"], ["y0"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs"))
    wide = x.astype(np.float64)
    return Case("If", 17, {"x": x}, [-wide if taken else np.abs(wide)], [0], constants={"c": np.array(taken)}, nodes=[node])


def resize(random):
    x = normal(random, *random.integers(1, 5, 4))
    factors = random.integers(1, 4, 2)
    want = np.repeat(np.repeat(x, factors[0], axis=2), factors[1], axis=3).astype(np.float64)
    given = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor", antialias=0)
    if random.random() < 0.5:
        given.update(axes=[2, 3], keep_aspect_ratio_policy="stretch")
    if random.random() < 0.5:
        constants = {"scales": factors.astype(np.float32) if "axes" in given else np.array([1, 1, *factors], np.float32)}
        names = ["x", "", "scales"]
    else:
        sizes = want.shape[2:] if "axes" in given else want.shape
        constants, names = {"sizes": np.array(sizes, np.int64)}, ["x", "", "", "sizes"]
    return Case("Resize", 19, {"x": x}, [want], [0], constants=constants, names=names, **given)


def reduce(random):
    op = str(random.choice(["ReduceMean", "ReduceMax", "ReduceSumSquare", "ReduceL1"]))
    x = normal(random, *random.integers(1, 6, 3))
    axes = sorted(random.choice(3, int(random.integers(1, 3)), replace=False).tolist())
    keep = int(random.integers(2))
    f = {"ReduceMean": np.mean, "ReduceMax": np.max, "ReduceSumSquare": lambda x, **k: (x * x).sum(**k),
         "ReduceL1": lambda x, **k: np.abs(x).sum(**k)}[op]
    wide = x.astype(np.float64)
    want = np.asarray(f(wide, axis=tuple(axes), keepdims=bool(keep)))
    allowed = 0 if op == "ReduceMax" else (8 + x.size) * U * (np.abs(wide).max() ** 2 + np.abs(wide).max()) * x.size
    given = [axis - 3 if random.random() < 0.5 else axis for axis in axes]
    return Case(op, 18, {"x": x}, [want], [allowed], constants={"axes": np.array(given, np.int64)}, keepdims=keep)


def split(random):
    n, parts = int(random.integers(7, 12)), int(random.integers(2, 4))
    x = normal(random, n, 3)
    each = -(-n // parts)
    wants = [x[i * each:(i + 1) * each].astype(np.float64) for i in range(parts)]
    case = Case("Split", 18, {"x": x}, wants, [0] * parts, axis=0, num_outputs=parts)
    # The sizes of the parts follow only from a fixed axis.
    case.constants, case.inputs = {"x": x}, {}
    return case


def pad(random):
    x = normal(random, *random.integers(1, 5, 3))
    before, after = (int(n) for n in random.integers(0, 4, 2))
    axis = int(random.integers(3))
    pads = [(before, after) if i == axis else (0, 0) for i in range(3)]
    constants = {"pads": np.array([before, after], np.int64), "axes": np.array([axis - 3], np.int64)}
    return Case("Pad", 18, {"x": x}, [np.pad(x, pads).astype(np.float64)], [0], constants=constants,
                names=["x", "pads", "", "axes"])


def shape(random):
    x = normal(random, *random.integers(1, 9, 4))
    start = int(random.integers(0, 4))
    end = int(random.integers(start + 1, 5))
    start -= 4 * int(random.integers(2))
    want = np.array(x.shape[start:end], np.float64)
    below_15 = ("opset-13", "tensorrt-8.2")
    return Case("Shape", 15, {"x": x}, [want], [0], lowered=below_15, kinds=[np.int64], start=start, end=end)


def cast(random):
    x = normal(random, *random.integers(1, 5, 2))
    want = x.astype(np.float16).astype(np.float64)
    return Case("Cast", 19, {"x": x}, [want], [0], kinds=[np.float16], to=TensorProto.FLOAT16, saturate=1)


def reciprocal(random):
    x = normal(random, *random.integers(1, 5, 2))
    x += np.sign(x)
    want = 1 / x.astype(np.float64)
    return Case("Reciprocal", 13, {"x": x}, [want], [2 * U * np.abs(want)], lowered=("tensorrt-8.2",))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


DRAWS = [
    layer, rms, group, rotary, einsum, chosen, resize, reduce, split, pad, shape, cast, reciprocal,
    activation("Gelu", 20, gelu, approximate=lambda random: str(random.choice(["none", "tanh"]))),
    activation("Swish", 24, lambda x, alpha: x * sigmoid(alpha * x),
               alpha=lambda random: float(np.float32(random.choice([1.0, 1.702])))),
    # ONNX Runtime 1.14 crashes while it loads a HardSwish of f16.
    activation("HardSwish", 14, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), lowered=("opset-13", "tensorrt-8.2"),
               types=lambda random: np.float32),
    activation("Mish", 18, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
]


def difference(case, found, factor=1):
    """Returns what is wrong with the outputs `found`, if anything is. Errors may be `factor` times as large."""
    for name, found, want, allowed in zip(case.outputs, found, case.wants, case.allowed):
        if tuple(found.shape) != want.shape:
            return "%s has the shape %s; allowed: %s" % (name, found.shape, want.shape)
        excess = np.abs(found.astype(np.float64) - want) - factor * allowed
        if not (excess <= 0).all():
            at = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape)
            return "%s%s is %r; allowed: %r with an error of %.2e" % (
                name, list(map(int, at)), float(found[at]), float(want[at]), factor * allowed[at])
    return None


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def lower(tool, case, source, target, name):
    """Lowers the model at `source` and checks the report and the file."""
    line = [tool, "onnx", "rewrite", source, target, "--json", "--check", "off", "--target", name]
    ran = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, "the tool ends with %d: %s" % (ran.returncode, ran.stderr.strip()[:300])
    said = json.loads(ran.stdout)
    opset, version, _ = TARGETS[name]
    expected = case.lowered is None or name in case.lowered
    states = [(node["operator"], node["lowered"]) for node in said["lowered"]]
    assert states == ([(case.op, True)] if expected else []), said["lowered"]
    model = onnx.load(target)
    assert (model.opset_import[0].version, said["opset"]) == (min(opset, case.opset),) * 2, model.opset_import
    assert model.ir_version <= version, model.ir_version
    onnx.checker.check_model(model)
    return states


def packed(case):
    """Returns the inputs in the form of examples/host/given.rs."""
    out = [" ".join(case.outputs).encode() + b"\n"]
    for name, x in case.inputs.items():
        out.append(" ".join(map(str, [name, int(TYPES[x.dtype]), *x.shape])).encode() + b"\n")
        out.append(np.ascontiguousarray(x).tobytes())
    return b"".join(out)


def unpacked(data):
    """Returns the tensors of an output file of examples/host/given.rs."""
    tensors = []
    while data:
        line, _, data = data.partition(b"\n")
        _, number, *sizes = line.decode().split(" ")
        kind, sizes = NUMBERS[int(number)], [int(n) for n in sizes]
        length = kind.itemsize * math.prod(sizes)
        tensors.append(np.frombuffer(data[:length], kind).reshape(sizes))
        data = data[length:]
    return tensors


def older(host, folder, cases):
    """Runs the models in `folder` in the older runtime. Returns its version, and the faults by name."""
    ran = subprocess.run([*host, "run", folder], capture_output=True, text=True, timeout=1500)
    version = re.match(r"ONNX Runtime (\S+),", ran.stdout)
    assert version, (ran.stdout + ran.stderr)[-300:]
    faults = {}
    said = {line.split(": ")[1]: line for line in ran.stdout.splitlines() if line.startswith(("ok", "FAILED"))}
    for name, case in cases.items():
        if not said.get(name, "").startswith("ok"):
            faults[name] = said.get(name, "not run")
            continue
        with open(os.path.join(folder, name + ".out"), "rb") as file:
            faults[name] = difference(case, unpacked(file.read()))
    return version[1], {name: fault for name, fault in faults.items() if fault}


def minor(host):
    """Returns the second number of the older runtime's version."""
    with tempfile.TemporaryDirectory() as folder:
        version, _ = older(host, folder, {})
    return int(version.split(".")[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--seed", type=int, default=44)
    parser.add_argument("--host", default="", help="the program examples/host, a runtime and the operator")
    args = parser.parse_args()
    host = shlex.split(args.host)
    onnxruntime.set_default_logger_severity(4)
    newest = minor(host) if host else 99
    targets = [name for name, (_, _, first) in TARGETS.items() if newest >= first]
    failed, cases, remarks = 0, {}, {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as here:
        for number, draw in enumerate(draw for draw in DRAWS for _ in range(args.count)):
            random = np.random.default_rng([args.seed, number])
            case = draw(random)
            source = os.path.join(here, "in.onnx")
            onnx.save(case.model(random), source)
            try:
                found = session(source).run(None, case.inputs)
                # The original rounds, too, and in f16 it may round each step.
                fault = None if case.half else difference(case, found, 2)
                remark = "with the original"
            except Exception as e:
                fault = None if any(part in str(e) for part in UNSUPPORTED) else str(e)
                remark = "the original does not run"
            if fault:
                failed += 1
                print("FAILED: %d %s: the original: %s" % (number, case.op, " ".join(fault.split())[:400]), flush=True)
            for target in targets:
                name = "%03d-%s" % (number, target.replace(".", "_"))
                path = os.path.join(folder, name + ".onnx")
                try:
                    lower(args.tool, case, source, path, target)
                    fault = difference(case, session(path).run(case.outputs, case.inputs))
                    assert not fault, fault
                    cases[name], remarks[name] = case, "%s for %s, %s" % (case.op, target, remark)
                    with open(os.path.join(folder, name + ".in"), "wb") as file:
                        file.write(packed(case))
                except Exception as e:
                    failed += 1
                    print("FAILED: %s %s: %s" % (name, case.op, " ".join(str(e).split())[:400]), flush=True)
                    if os.path.exists(path):
                        os.remove(path)
        version, faults = older(host, folder, cases) if host else (onnxruntime.__version__, {})
    for name, remark in remarks.items():
        if name in faults:
            print("FAILED: %s: %s, ONNX Runtime %s: %s" % (name, remark, version, " ".join(faults[name].split())[:400]))
        else:
            print("ok: %s: %s" % (name, remark))
    return 1 if failed or faults or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
