"""Measures how the threads of the operator and of ONNX Runtime share the cores: threads.py LIBRARY

Times a model of 12 layers (matrix product, operator, matrix product; 577 tokens, 4 heads of 64) for each number of threads of
the runtime and of the operator, with and without spinning of the runtime's threads. Prints the time of the fastest of 40 runs
in milliseconds. Every measurement runs in a separate process, because a process has one engine."""

import os
import subprocess
import sys
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

TOKENS, HEADS, DIM, LAYERS, RUNS = 577, 4, 64, 12, 40


def model():
    random = np.random.RandomState(0)
    width = HEADS * DIM
    nodes, weights, x = [], [], "x"
    for i in range(LAYERS):
        for name, columns in [("in", 3 * width), ("out", width)]:
            weight = (random.randn(width, columns) / width**0.5).astype(np.float32)
            weights.append(numpy_helper.from_array(weight, "%s%d" % (name, i)))
        nodes.append(helper.make_node("MatMul", [x, "in%d" % i], ["qkv%d" % i]))
        nodes.append(helper.make_node("ElsaAttention", ["qkv%d" % i], ["y%d" % i], domain="ai.elsa", num_heads=HEADS,
                                      packed=1))
        nodes.append(helper.make_node("MatMul", ["y%d" % i, "out%d" % i], ["x%d" % i]))
        x = "x%d" % i
    shape = [1, TOKENS, width]
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    between = [value("y%d" % i) for i in range(LAYERS)]
    graph = helper.make_graph(nodes, "layers", [value("x")], [value(x)], weights, value_info=between)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.elsa", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=7).SerializeToString()


def measure(library, threads, spinning):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    x = np.random.RandomState(1).randn(1, TOKENS, HEADS * DIM).astype(np.float32)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, {"x": x})
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main(library):
    print("ONNX Runtime %s, %d cores" % (onnxruntime.__version__, os.cpu_count()))
    print("| threads of the runtime | spinning | threads of the operator | ms |\n|---|---|---|---|")
    for threads in "12":
        for spinning in "10":
            for own in "12":
                words = [sys.executable, "-B", __file__, library, threads, spinning]
                out = subprocess.run(words, env=dict(os.environ, ELSA_THREADS=own), capture_output=True, text=True)
                print("| %s | %s | %s | %s |" % (threads, spinning, own, out.stdout.strip() or out.stderr.strip()[-200:]))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        print("%.1f" % measure(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
