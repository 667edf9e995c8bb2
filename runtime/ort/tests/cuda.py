"""ElsaAttention in the CUDA provider of onnxruntime-gpu 1.18 or later: CUDA graphs and memory. cuda.py LIBRARY

Needs onnxruntime-gpu, onnx and numpy. The program `host` of this crate checks every case of the operators, two sessions
and threads in this provider: `host RUNTIME OPERATOR f32 cuda`, where RUNTIME is `libonnxruntime.so` of the same package."""

import ctypes
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

# Shapes of queries, keys and values: one launch, and keys that are divided among thread blocks.
SHAPES = [(1, 8, 64, 64), (1, 3, 700, 64), (2, 4, 33, 128)]
# Bytes that device memory may vary between equal programs: the driver allocates whole pages of 2 MiB.
PAGE = 2 << 20


def session(library, nodes, **options):
    """Returns a session of a chain of nodes, whose queries are the output of the node before."""
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "h", "n", "d"])
    names = ["q"] + [f"y{i}" for i in range(1, nodes)] + ["y"]
    chain = [helper.make_node("ElsaAttention", [a, "k", "v"], [b], domain="ai.elsa") for a, b in zip(names, names[1:])]
    graph = helper.make_graph(chain, "chain", [value(name) for name in "qkv"], [value("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.elsa", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    chosen = onnxruntime.SessionOptions()
    chosen.register_custom_ops_library(library)
    made = onnxruntime.InferenceSession(model, chosen, providers=[("CUDAExecutionProvider", options)])
    assert made.get_providers()[0] == "CUDAExecutionProvider", made.get_providers()
    return made


def attention(q, k, v):
    """Computes attention in f64."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / np.sqrt(q.shape[3])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ v.astype(np.float64) / weights.sum(axis=-1, keepdims=True)


def graphs(library, shape):
    """Captures a chain of three nodes, and replays it on other numbers at the same addresses."""
    random = np.random.default_rng(3)
    running = session(library, 3, enable_cuda_graph="1")
    draw = lambda: random.standard_normal(shape).astype(np.float32)
    on_device = {name: onnxruntime.OrtValue.ortvalue_from_numpy(draw(), "cuda", 0) for name in "qkvy"}
    binding = running.io_binding()
    for name in "qkv":
        binding.bind_ortvalue_input(name, on_device[name])
    binding.bind_ortvalue_output("y", on_device["y"])
    for turn in range(6):
        given = {name: draw() for name in "qkv"}
        for name, x in given.items():
            on_device[name].update_inplace(x)
        running.run_with_iobinding(binding)
        want = given["q"]
        for _ in range(3):
            want = attention(want, given["k"], given["v"])
        error = np.abs(on_device["y"].numpy() - want).max()
        assert error <= 5e-6, f"run {turn}: error {error:.1e}; allowed: 5e-6"


def free():
    """Returns the free bytes of the device."""
    sizes = ctypes.c_size_t(), ctypes.c_size_t()
    status = ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(*map(ctypes.byref, sizes))
    assert status == 0, f"cuMemGetInfo: {status}"
    return sizes[0].value


def memory(library):
    """Makes and ends sessions that run several shapes. The later ones must leave as much memory as the earlier ones."""
    left = []
    for _ in range(12):
        running = session(library, 2, arena_extend_strategy="kSameAsRequested")
        for shape in SHAPES:
            x = np.ones(shape, np.float32)
            assert np.abs(running.run(None, {"q": x, "k": x, "v": x})[0] - 1).max() <= 1e-6
        del running
        left.append(free())
    lost = left[3] - left[-1]
    assert lost <= PAGE, f"8 sessions take {lost} bytes; allowed: {PAGE}"


def limit(library):
    """Runs a call whose workspace fits the provider's limit of memory, and one whose workspace exceeds it."""
    x = np.ones((1, 1, 8000, 64), np.float32)
    run = lambda mib: session(library, 1, gpu_mem_limit=str(mib << 20)).run(None, {"q": x, "k": x, "v": x})
    run(64)
    try:
        run(8)
    except Exception as e:
        assert "AllocatorAlloc" in str(e), e
    else:
        raise AssertionError("8 MiB of memory suffice; allowed: an error, because tensors and workspace take 16 MB")


def main(library):
    cases = [(f"a CUDA graph of {list(shape)}", lambda shape=shape: graphs(library, shape)) for shape in SHAPES]
    cases += [("memory after a session", lambda: memory(library)), ("the limit of memory", lambda: limit(library))]
    failed = 0
    for what, check in cases:
        try:
            check()
            print(f"ok: {what}", flush=True)
        except Exception as e:
            failed += 1
            print(f"FAILED: {what}: {' '.join(str(e).split())[:400]}", flush=True)
    print(f"onnxruntime-gpu {onnxruntime.__version__}")
    return 0 if not failed else 1


if __name__ == "__main__":
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    sys.exit(main(sys.argv[1]))
