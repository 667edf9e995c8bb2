"""The operator from Python 3.6 on: quick_start.py LIBRARY MODEL [PROVIDER]

MODEL is a node of the operator over Q, K and V of rank 4 without attributes. Compares with f64, and checks the message of
a refused call. The status 77 means that this ONNX Runtime lacks the provider."""

import sys

import numpy as np
import onnxruntime


def attention(q, k, v):
    q, k, v = [x.astype(np.float64) for x in (q, k, v)]
    scores = np.matmul(q, k.swapaxes(-1, -2)) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.matmul(weights / weights.sum(-1, keepdims=True), v)


def main(library, model, provider="CPUExecutionProvider"):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    if provider not in session.get_providers():
        print("this ONNX Runtime lacks %s" % provider, file=sys.stderr)
        return 77
    random = np.random.RandomState(1)
    q, k, v = [random.randn(2, 3, 50, 24).astype(np.float32) for _ in range(3)]
    try:
        session.run(None, {"Q": q, "K": k[..., :8], "V": v})
    except Exception as e:
        message = str(e)
    else:
        message = "none"
    if "K: head size 8; allowed: 24" not in message:
        print("FAILED: the message of a refusal: %s" % message)
        return 1
    (y,) = session.run(None, {"Q": q, "K": k, "V": v})
    error = np.abs(y - attention(q, k, v)).max()
    right = error <= 4e-6
    print("%s: Python %s, ONNX Runtime %s: error %.1e" % (
        "ok" if right else "FAILED", sys.version.split()[0], onnxruntime.__version__, error))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
