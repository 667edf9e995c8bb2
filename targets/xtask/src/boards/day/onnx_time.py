"""Times the operator beside ONNX Runtime's own nodes: onnx_time.py LIBRARY FOLDER PROVIDER

FOLDER contains two models of the same attention: attention.onnx, a node of the operator, and plain.onnx, standard nodes.
Sessions with one thread take turns. Prints a line of JSON with the medians in milliseconds."""

import json
import sys
import time

import numpy as np
import onnxruntime

CALLS = 100


def session(path, library, provider):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(path, options, providers=[provider])


def main(library, folder, provider):
    if provider not in onnxruntime.get_available_providers():
        print("this ONNX Runtime lacks %s" % provider, file=sys.stderr)
        return 77
    sessions = [session("%s/%s.onnx" % (folder, name), library, provider) for name in ("attention", "plain")]
    shape = sessions[0].get_inputs()[0].shape
    random = np.random.RandomState(1)
    inputs = {name: random.randn(*shape).astype(np.float32) for name in "QKV"}
    ours, theirs = [each.run(None, inputs)[0] for each in sessions]
    times = [[], []]
    for _ in range(CALLS):
        for each, taken in zip(sessions, times):
            start = time.perf_counter()
            each.run(None, inputs)
            taken.append((time.perf_counter() - start) * 1e3)
    medians = [float(np.median(taken)) for taken in times]
    difference = float(np.abs(ours - theirs).max())
    print(json.dumps({
        "what": "peer", "peer": "ONNX Runtime %s" % onnxruntime.__version__, "on": provider,
        "shape": "x".join(str(size) for size in shape), "elsa_ms": medians[0], "peer_ms": medians[1],
        "difference": difference}))
    # Both sum in f32.
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
