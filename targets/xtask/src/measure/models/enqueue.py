"""Measures the time in which calls on CUDA tensors are enqueued: a table in Markdown.

`enqueue.py [--onnx LIBRARY]` needs elsa.py on PYTHONPATH.

Times are of the calling thread, in microseconds, as the median and the quartiles of 300 blocks of 20 calls; the device
finishes between the blocks. "torch" is torch's scaled_dot_product_attention, "launch" a kernel of torch that writes 32
numbers. With the path of the operator library as `--onnx LIBRARY`, a model of one node also runs in ONNX Runtime's CUDA
provider with bound tensors, beside a model of one node Identity.

Exit status 1: `elsa.attention` takes more than 10 us longer than "launch".
"""

import argparse
import statistics
import time

import torch

import elsa

BLOCKS, CALLS, MOST = 300, 20, 10.0


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


def node(library, domain, kind, names, shape):
    """Returns a call of ONNX Runtime for a model of one node with bound tensors on the device."""
    import onnxruntime
    from onnx import TensorProto, helper

    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    operator = helper.make_node(kind, names, ["y"], domain=domain)
    graph = helper.make_graph([operator], "one", [value(name) for name in names], [value("y")])
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
    if library:
        rows["ONNX Runtime, Identity"] = node(library, "", "Identity", ["q"], shape)
        rows["ONNX Runtime, ElsaAttention"] = node(library, "ai.elsa", "ElsaAttention", ["q", "k", "v"], shape)
    print("| call | us (quartiles) |\n|---|---|")
    medians = {}
    with torch.inference_mode():
        for name, call in rows.items():
            low, medians[name], high = microseconds(call, torch.cuda.synchronize)
            print(f"| {name} | **{medians[name]:.1f}** ({low:.1f} to {high:.1f}) |", flush=True)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, elsa {elsa.version()}, shape {list(shape)}.")
    beyond = medians["elsa.attention"] - medians["launch"]
    if not beyond <= MOST:
        raise SystemExit(f"failed: elsa.attention: {beyond:.1f} us more than a launch; allowed: at most {MOST}")


if __name__ == "__main__":
    main()
