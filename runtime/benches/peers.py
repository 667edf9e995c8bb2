"""Peers on the CPU, measured slice by slice at the request of peers.rs.

Reads one JSON object a line and answers each with one.

{"shape": [batch, heads, queries, keys, d], "dtype": "f32", "threads": T, "dir": FOLDER, "isa": null | "avx2"}
    prepares a problem from the files q, k, v in FOLDER (little-endian f32, [batch, heads, tokens, d]) and
    answers {"jobs": [NAME...], "absent": {NAME: WHY}, "versions": {...}}.
{"slice": NAME, "seconds": S, "tries": N, "waited": LIMIT}
    calls that peer for S seconds unmeasured, so that its pool is awake and its threads have found their
    processors, then for about S seconds measured, again and again (N times at most) until its threads were
    kept waiting for a processor for less than LIMIT of that time. Then waits until the threads of its
    pools sleep and answers {"seconds": of one call, "calls": their number, "calm": whether the last measured
    slice kept to the limit, "settle": seconds that the pools still spun}.
{"check": FILE}
    compares the answer in FILE, and that of every peer, with attention in f64, and answers
    {NAME: relative L2 error}; FILE counts as "elsa".

Fairness. Pools keep their own habits within a slice, spinning included, because that is how they are fast. A
pool that still spins when its slice is over would slow the next job, so the answer to a slice is held back
until this process uses no processor time. Gradients are off, tensors and outputs are bound beforehand where
an interface offers it, and contexts are entered outside the clock.
"""
import contextlib
import glob
import json
import math
import os
import sys
import time

# numpy computes the f64 answer only; a second pool would spin beside those that are measured.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
try:
    import numpy as np
except ImportError:
    sys.exit(f"{sys.executable}: numpy is missing; so are, perhaps, torch, onnx and onnxruntime")

SGEMM = 768
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


class Job:
    """A call, the context that it is made in, and what reads its answer as f32 [batch, heads, queries, d]."""

    def __init__(self, call, read=None, context=contextlib.nullcontext):
        self.call, self.read, self.context = call, read, context


def torch_jobs(q, k, v, dtype):
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    q, k, v = (torch.from_numpy(x).to(kind) for x in (q, k, v))
    call = lambda: F.scaled_dot_product_attention(q, k, v)
    read = lambda: call().float().numpy()
    return {
        "torch": Job(call, read),
        "torch-flash": Job(call, read, lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)),
        "torch-math": Job(call, read, lambda: sdpa_kernel(SDPBackend.MATH)),
    }


def sgemm_job():
    a, b, c = (torch.randn(SGEMM, SGEMM) for _ in range(3))
    return Job(lambda: torch.mm(a, b, out=c))


def onnxruntime_job(q, k, v, threads):
    batch, heads, queries, d = q.shape
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads)
    rows = lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], heads * d))
    feed = {"q": rows(q), "k": rows(k), "v": rows(v)}
    y = np.empty_like(feed["q"])
    info = lambda name, x: helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape)
    graph = helper.make_graph([node], "attention", [info(*x) for x in feed.items()], [info("y", y)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
    out = onnxruntime.OrtValue.ortvalue_from_numpy(y)
    binding.bind_ortvalue_output("y", out)
    call = lambda: session.run_with_iobinding(binding)

    def read():
        call()
        return out.numpy().reshape(batch, queries, heads, d).transpose(0, 2, 1, 3)

    return Job(call, read)


def prepare(q, k, v, dtype, threads, isa):
    jobs, absent = {}, {}
    if torch is None:
        absent["torch"] = absent["sgemm"] = "not installed"
    else:
        torch.set_num_threads(threads)
        jobs["sgemm"] = sgemm_job()
        jobs.update(torch_jobs(q, k, v, dtype))
    if onnxruntime is None:
        absent["onnxruntime"] = "not installed"
    elif dtype != "f32":
        absent["onnxruntime"] = f"MultiHeadAttention has no {dtype} on the CPU"
    elif isa is not None:
        absent["onnxruntime"] = f"cannot be held to {isa}"
    else:
        try:
            jobs["onnxruntime"] = onnxruntime_job(q, k, v, threads)
        except Exception as error:
            absent["onnxruntime"] = str(error)
    for name in list(jobs):
        try:
            with jobs[name].context():
                jobs[name].call()
        except Exception as error:
            absent[name] = str(error)
            del jobs[name]
    return jobs, absent


def versions():
    found = {"python": sys.version.split()[0]}
    if torch:
        found["torch"] = torch.__version__
        found["torch_isa"] = torch.backends.cpu.get_cpu_capability()
    if onnxruntime:
        found["onnxruntime"] = onnxruntime.__version__
    return found


def settle():
    """Waits until this process sleeps; returns how long that took."""
    start, step = time.perf_counter(), 0.002
    while True:
        used = time.process_time()
        time.sleep(step)
        if time.process_time() - used < 0.1 * step:
            return time.perf_counter() - start - step
        if time.perf_counter() - start > 2:
            raise SystemExit("the threads of a peer never sleep")


def waited():
    """Seconds for which threads of this process were ready to run and had no processor, so far (Linux)."""
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(OSError), open(path) as file:
            total += int(file.read().split()[1])
    return total / 1e9


def measure(job, seconds, tries, limit):
    clock = time.perf_counter

    def take(call):
        before, calls, start = waited(), 0, clock()
        while True:
            call()
            calls += 1
            elapsed = clock() - start
            if elapsed >= seconds:
                break
        return elapsed / calls, calls, waited() - before <= limit * elapsed

    with job.context():
        take(job.call)
        for _ in range(tries):
            each, calls, calm = take(job.call)
            if calm:
                break
    return {"seconds": each, "calls": calls, "calm": calm, "settle": settle()}


def exact(q, k, v):
    """softmax(q kᵀ / √d) v in f64, head by head."""
    y = np.empty(q.shape, np.float64)
    for at in np.ndindex(q.shape[:2]):
        s = q[at].astype(np.float64) @ k[at].astype(np.float64).T / math.sqrt(q.shape[-1])
        p = np.exp(s - s.max(-1, keepdims=True))
        y[at] = (p / p.sum(-1, keepdims=True)) @ v[at].astype(np.float64)
    return y


def errors(inputs, path, jobs):
    truth = exact(*inputs)
    norm = np.linalg.norm(truth)
    error = lambda y: float(np.linalg.norm(y - truth) / norm)
    found = {"elsa": error(np.fromfile(path, "<f4").reshape(truth.shape))}
    for name, job in jobs.items():
        if job.read:
            with job.context():
                found[name] = error(job.read())
    return found


def serve():
    jobs, inputs = {}, ()
    for line in sys.stdin:
        request = json.loads(line)
        if "shape" in request:
            batch, heads, queries, keys, d = request["shape"]
            read = lambda name, n: np.fromfile(os.path.join(request["dir"], name), "<f4").reshape(batch, heads, n, d)
            inputs = read("q", queries), read("k", keys), read("v", keys)
            jobs, absent = prepare(*inputs, request["dtype"], request["threads"], request["isa"])
            settle()
            answer({"jobs": list(jobs), "absent": absent, "versions": versions()})
        elif "check" in request:
            found = errors(inputs, request["check"], jobs)
            settle()
            answer(found)
        else:
            answer(measure(jobs[request["slice"]], request["seconds"], request["tries"], request["waited"]))


with torch.inference_mode() if torch else contextlib.nullcontext():
    serve()
