"""Peers on the CPU, measured slice by slice at the request of peers.rs.

Reads one JSON object a line. {"threads": T, "shape": [heads, queries, keys, d], "dtype": "f32"} prepares a
problem with standard normal data and answers with the names of the peers that can be measured;
{"slice": NAME, "seconds": S} calls that peer for about S seconds and answers with the seconds of one call.
"""
import json
import os
import sys
import time

import numpy as np

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(value):
    answers.write(json.dumps(value) + "\n")
    answers.flush()


try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    torch = None
try:
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError:
    onnxruntime = None


def onnx_session(heads, queries, keys, d, threads):
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads)
    tensor = lambda name, n: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n, heads * d])
    graph = helper.make_graph([node], "attention", [tensor("q", queries), tensor("k", keys), tensor("v", keys)], [tensor("y", queries)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # A spinning pool would slow whoever is measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", os.environ.get("ELSA_PEER_SPIN", "1"))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def prepare(heads, queries, keys, d, threads, dtype):
    jobs = {}
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, heads, n, d), dtype=np.float32) for n in (queries, keys, keys))
    if torch:
        torch.set_num_threads(threads)
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        tq, tk, tv = (torch.from_numpy(x).to(kind) for x in (q, k, v))

        def flash():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                F.scaled_dot_product_attention(tq, tk, tv)

        def math():
            with sdpa_kernel(SDPBackend.MATH):
                F.scaled_dot_product_attention(tq, tk, tv)

        a, b = torch.randn(768, 768), torch.randn(768, 768)
        jobs["sgemm768"] = lambda: a @ b
        jobs["torch"] = lambda: F.scaled_dot_product_attention(tq, tk, tv)
        jobs["torch-flash"] = flash
        jobs["torch-math"] = math
    if onnxruntime and dtype == "f32":
        session = onnx_session(heads, queries, keys, d, threads)
        rows = lambda x: np.ascontiguousarray(x[0].transpose(1, 0, 2).reshape(1, x.shape[2], heads * d))
        feed = {"q": rows(q), "k": rows(k), "v": rows(v)}
        jobs["onnxruntime"] = lambda: session.run(None, feed)
    return jobs


jobs = {}
for line in sys.stdin:
    request = json.loads(line)
    if "shape" in request:
        try:
            jobs = prepare(*request["shape"], request["threads"], request["dtype"])
            for job in jobs.values():
                job()
        except Exception as e:
            print(e, file=sys.stderr)
            jobs = {}
        answer(list(jobs))
    else:
        job, calls, start = jobs[request["slice"]], 0, time.perf_counter()
        job()
        start = time.perf_counter()
        while True:
            job()
            calls += 1
            elapsed = time.perf_counter() - start
            if elapsed >= request["seconds"]:
                break
        answer(elapsed / calls)
