"""Measures the time in which calls on CUDA tensors are enqueued: a table in Markdown.

`enqueue.py [--onnx LIBRARY]` needs elsa.py on PYTHONPATH.

Times are of the calling thread, in microseconds, as the median and the quartiles of 300 blocks of 20 calls; the device
finishes between the blocks. "torch" is torch's scaled_dot_product_attention, "launch" a kernel of torch that writes 32
numbers. "device" is the time of a call on the device, from a CUDA graph of 20 calls. "C" is `elsa_run_device` called by
ctypes, and "ctypes" a function of the library that does nothing. With the path of the operator library as
`--onnx LIBRARY`, ONNX Runtime's CUDA provider also runs models with bound tensors: one node Identity, one node
ElsaAttention, and a chain of 16, from which the time of a node follows.

Exit status 1: `elsa.attention` takes more than 10 us longer than "launch", or a node of the chain more than 10 us.
"""

import argparse
import statistics
import time

import torch

import elsa

BLOCKS, CALLS, REPLAYS, MOST, NODES = 300, 20, 10, 10.0, 16


def microseconds(call, finish):
    """Returns the quartiles of the time of a call."""
    times = []
    for block in range(-30, BLOCKS):
        finish()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        taken = time.perf_counter() - start
        if block >= 0:
            times.append(1e6 * taken / CALLS)
    finish()
    return statistics.quantiles(times, n=4)


def on_device(call):
    """Returns a function that replays a graph of the call ten times, and waits."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    def replay():
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()

    return replay


def through_c(q, k, v, out):
    """Returns the call of `elsa_run_device` that elsa.py has prepared for the tensors."""
    elsa.attention(q, k, v, out=out)
    prepared = [x for x in elsa._engine_for(0)._local.prepared.values() if type(x) is elsa._Attention][-1]
    stream = torch.cuda.current_stream().cuda_stream or 1
    words = prepared.plan.handle, prepared.place.workspace.handle, *prepared.structs, stream, None
    return lambda: prepared.run_device(*words)


def chain(library, domain, kind, names, shape, nodes):
    """Returns a call of ONNX Runtime for a model with bound tensors on the device, whose nodes each replace the first."""
    import onnxruntime
    from onnx import TensorProto, helper

    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    results = [f"y{at}" for at in range(1, nodes)] + ["y"]
    firsts = names[:1] + results[:-1]
    operators = [helper.make_node(kind, [x, *names[1:]], [y], domain=domain) for x, y in zip(firsts, results)]
    graph = helper.make_graph(operators, "chain", [value(name) for name in names], [value("y")])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.elsa", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=7).SerializeToString()
    onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    binding = session.io_binding()
    kept = [torch.randn(shape, device="cuda") for _ in range(len(names) + 1)]
    import numpy

    for name, tensor in zip(names, kept):
        binding.bind_input(name, "cuda", 0, numpy.float32, shape, tensor.data_ptr())
    binding.bind_output("y", "cuda", 0, numpy.float32, shape, kept[-1].data_ptr())
    run = onnxruntime.RunOptions()
    # The call then does not wait for the device.
    run.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return lambda kept=kept: session.run_with_iobinding(binding, run)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--onnx", metavar="LIBRARY")
    library = parser.parse_args().onnx
    shape = (1, 8, 64, 64)
    q, k, v = [torch.randn(shape, device="cuda") for _ in range(3)]
    small, out = torch.zeros(32, device="cuda"), torch.empty_like(q)
    rows = {
        "launch": lambda: small.fill_(1.0),
        "torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "elsa.attention": lambda: elsa.attention(q, k, v),
        "elsa.attention, out": lambda: elsa.attention(q, k, v, out=out),
        "elsa.sdpa": lambda: elsa.sdpa(q, k, v),
    }
    rows["C"], rows["ctypes"] = through_c(q, k, v, out), elsa._lib.elsa_abi_version
    parts = {"device, torch": CALLS * REPLAYS, "device, elsa": CALLS * REPLAYS}
    rows["device, torch"], rows["device, elsa"] = map(on_device, (rows["torch"], rows["elsa.attention, out"]))
    if library:
        elsas = "ai.elsa", "ElsaAttention", ["q", "k", "v"], shape
        rows["ONNX Runtime, Identity"] = chain(library, "", "Identity", ["q"], shape, 1)
        rows["ONNX Runtime, ElsaAttention"] = chain(library, *elsas, 1)
        rows[f"ONNX Runtime, {NODES} x ElsaAttention"] = chain(library, *elsas, NODES)
    print("| call | us (quartiles) |\n|---|---|")
    medians = {}
    with torch.inference_mode():
        for name, call in rows.items():
            low, medians[name], high = (x / parts.get(name, 1) for x in microseconds(call, torch.cuda.synchronize))
            print(f"| {name} | **{medians[name]:.1f}** ({low:.1f} to {high:.1f}) |", flush=True)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, elsa {elsa.version()}, shape {list(shape)}.")
    added = {"elsa.attention": medians["elsa.attention"] - medians["launch"]}
    if library:
        both = medians[f"ONNX Runtime, {NODES} x ElsaAttention"] - medians["ONNX Runtime, Identity"]
        added["a node ElsaAttention"] = both / NODES
        print(f"A node ElsaAttention of the chain takes {both / NODES:.1f} us.")
    for name, time in added.items():
        if not time <= MOST:
            raise SystemExit(f"failed: {name}: {time:.1f} us more than a launch or a session; allowed: at most {MOST}")


if __name__ == "__main__":
    main()
