"""`elsa onnx rewrite --check`: onnx_check.py TOOL LIBRARY [RUNTIME]

RUNTIME names a library of ONNX Runtime for the tool. Without it, the tool must find the one of this Python and one in
LD_LIBRARY_PATH. A model whose answers change from run to run plays a wrong replacement."""

import glob
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOOL, LIBRARY = (os.path.abspath(path) for path in sys.argv[1:3])
RUNTIME = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None


def model(noise=False, element=TensorProto.FLOAT, axes=("b", "n", "m"), foreign=False, weight=None):
    b, n, m = axes
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["w"], axis=-1),
        helper.make_node("MatMul", ["w", "v"], ["z"]),
    ]
    constants = []
    if noise:
        nodes.append(helper.make_node("RandomNormalLike", ["z"], ["r"]))
        nodes.append(helper.make_node("Add", ["z", "r"], ["y"]))
    elif foreign:
        nodes.append(helper.make_node("Unknown", ["z"], ["y"], domain="example"))
    elif weight is not None:
        constants.append(numpy_helper.from_array(weight, "c"))
        nodes.append(helper.make_node("MatMul", ["z", "c"], ["y"]))
    else:
        nodes.append(helper.make_node("Identity", ["z"], ["y"]))
    value = lambda name, tokens: helper.make_tensor_value_info(name, element, [b, 2, tokens, 8])
    graph = helper.make_graph(nodes, "g", [value("q", n), value("k", m), value("v", m)], [value("y", n)], constants)
    opsets = [helper.make_opsetid("", 13)] + ([helper.make_opsetid("example", 1)] if foreign else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=7)


class Desk:
    def __init__(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def save(self, made, **options):
        for name in os.listdir(self.folder):
            if os.path.isfile(self.path(name)):
                os.remove(self.path(name))
        onnx.save(made, self.path("in.onnx"), **options)

    def rewrite(self, *flags, tool=TOOL, named=True, **environment):
        line = [tool, "onnx", "rewrite", self.path("in.onnx"), self.path("out.onnx"), "--json", *flags]
        if named and RUNTIME:
            line += ["--runtime", RUNTIME]
        if named and "--operator" not in flags:
            line += ["--operator", LIBRARY]
        clean = {name: value for name, value in os.environ.items() if name not in ("ELSA_ONNXRUNTIME", "ELSA_ORT_TYPE")}
        clean["PATH"] = os.path.dirname(sys.executable) + os.pathsep + clean.get("PATH", "")
        ran = subprocess.run(line, capture_output=True, text=True, env={**clean, **environment}, timeout=100)
        said = json.loads(ran.stdout)["check"] if ran.returncode == 0 else ran.stderr.strip()
        assert ran.returncode == 0 or not ran.stdout, ran.stdout
        return ran.returncode, said, os.path.exists(self.path("out.onnx"))


def requires(found, status, written, *words):
    code, said, there = found
    assert (code, there) == (status, written), found
    assert all(word in (said or "") for word in words), found
    assert "\n" not in (said or ""), found


def equal(desk):
    desk.save(model())
    requires(desk.rewrite("--check", "require"), 0, True, "checked: ONNX Runtime 1.", "b = 2, m = 9, n = 1",
             "b = 1, m = 11, n = 13", "n = 307")
    desk.save(model(axes=(2, 5, 7)))
    requires(desk.rewrite("--check", "require"), 0, True, "checked: ONNX Runtime 1.", "its fixed sizes")
    desk.save(model(axes=("b", "n", "past + n")))
    requires(desk.rewrite("--check", "require"), 0, True, "checked: ")
    desk.save(model())
    code, said, there = desk.rewrite("--check", "off")
    assert (code, said, there) == (0, None, True), said


def different(desk):
    desk.save(model(noise=True))
    words = ["verification failed: OUT: not written: output 'y'[", "in the original; ", "b = 2, m = 9, n = 1"]
    requires(desk.rewrite(), 4, False, *words)
    with open(desk.path("out.onnx"), "w") as file:
        file.write("older")
    requires(desk.rewrite(), 4, True, *words)
    with open(desk.path("out.onnx")) as file:
        assert file.read() == "older"
    assert sorted(os.listdir(desk.folder)) == ["in.onnx", "out.onnx"], os.listdir(desk.folder)
    requires(desk.rewrite("--check", "off"), 0, True)


def unable(desk):
    desk.save(model(foreign=True))
    requires(desk.rewrite("--check", "require"), 6, False, "no claim: --check: ", "does not run the original")
    requires(desk.rewrite(), 0, True, "not checked: ", "does not run the original")


def halves(desk):
    desk.save(model(element=TensorProto.FLOAT16))
    code, said, there = desk.rewrite()
    assert code == 0 and there, said
    if "ELSA_ORT_TYPE" in said:
        assert said.startswith("not checked: "), said
        requires(desk.rewrite(ELSA_ORT_TYPE="f16"), 0, True, "checked: ")
    else:
        assert said.startswith("checked: "), said


def weights_beside(desk):
    weight = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    desk.save(model(weight=weight), save_as_external_data=True, location="in.data", size_threshold=0)
    requires(desk.rewrite("--check", "require"), 0, True, "checked: ")


def named_wrongly(desk):
    desk.save(model())
    requires(desk.rewrite("--operator", desk.path("none.so")), 2, False, "--operator: ", "which is no file")
    if RUNTIME:
        return
    requires(desk.rewrite("--runtime", LIBRARY), 2, False, "--runtime: ", "without OrtGetApiBase", "allowed: ")
    requires(desk.rewrite(ELSA_ONNXRUNTIME=desk.path("in.onnx")), 2, False, "--runtime: ELSA_ONNXRUNTIME: ", "allowed: ")
    # The runtime refuses a library that is not an operator before it runs the original.
    requires(desk.rewrite("--operator", desk.path("in.onnx")), 0, True, "not checked: ")


def found(desk):
    import onnxruntime

    if RUNTIME:
        return
    desk.save(model())
    version = "ONNX Runtime " + onnxruntime.__version__
    requires(desk.rewrite("--operator", LIBRARY, named=False), 0, True, version)
    library, = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime.so.*"))
    folder = desk.path("lib")
    os.mkdir(folder)
    os.symlink(library, os.path.join(folder, "libonnxruntime.so.1"))
    requires(desk.rewrite("--operator", LIBRARY, named=False, PATH="", LD_LIBRARY_PATH=folder), 0, True, version)
    requires(desk.rewrite("--operator", LIBRARY, named=False, PATH="", ELSA_ONNXRUNTIME=library), 0, True, version)
    # Nothing is checked if the operator is not next to the tool and no flag names it.
    alone = os.path.join(os.path.dirname(TOOL), "check-alone")
    os.makedirs(alone, exist_ok=True)
    tool = os.path.join(alone, "elsa")
    if not os.path.exists(tool):
        os.link(TOOL, tool)
    requires(desk.rewrite(named=False, tool=tool, ELSA_ONNXRUNTIME=library), 0, True,
             "not checked: libelsa_ort.so is not in ../lib", "--operator FILE")
    os.remove(tool)
    os.rmdir(alone)


def main():
    failed = 0
    for case in [equal, different, unable, halves, weights_beside, named_wrongly, found]:
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
