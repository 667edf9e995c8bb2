"""Measures calls of peers in slices of time, at the request of process.rs. The scripts of all peers use it.

Reads one JSON object a line and answers each with one.

{"slice": NAME, "seconds": S, "look": C, "tries": N, "waited": LIMIT}
    calls that peer for S seconds unmeasured, so that its pool is awake and its threads have found their
    processors, then for about S seconds measured, with a look at the clock about every C seconds. With one thread
    the clock is that thread's processor time. Else it is the wall clock, and the slice is repeated (N times at most)
    until threads were kept waiting for a processor for less than LIMIT of that time. Then waits until the threads of
    its pools sleep and answers {"seconds": of one call, "calls": their number, "calm": whether the last measured
    slice kept to the limit, "settle": seconds that the pools still spun}.
{"check": FILE}
    compares the answer in FILE, and that of every peer, with the exact one in f64, and answers
    {NAME: relative L2 error}; FILE counts as "elsa".
Any other request prepares a problem, as the script documents, and answers
    {"jobs": [NAME...], "absent": {NAME: WHY}, "versions": {...}}.

Fairness. Pools keep their habits within a slice, spinning included, because that makes them fast. A pool that still
spins after its slice would slow the next job, so the answer to a slice is held back until this process uses no
processor time. Gradients are off, tensors and outputs are bound beforehand if an interface permits it, and contexts are
entered outside the clock. Peers flush subnormal numbers to zero, by their options.
"""
import contextlib
import glob
import json
import os
import sys
import time

# numpy computes the f64 answer only; a second pool would spin next to the measured ones.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
try:
    import numpy as np
except ImportError:
    sys.exit(f"{sys.executable}: numpy is missing; so are, perhaps, torch, onnx and onnxruntime")

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(value):
    answers.write(json.dumps(value) + "\n")
    answers.flush()


try:
    import torch
except ImportError:
    torch = None
try:
    import onnxruntime
except ImportError:
    onnxruntime = None
try:
    import openvino
except ImportError:
    openvino = None


class Job:
    """A call, its context, and a function that reads its answer as f32. `calls` is the number of calls that `call` makes."""

    def __init__(self, call, read=None, context=contextlib.nullcontext, calls=1):
        self.call, self.read, self.context, self.calls = call, read, context, calls


def usable(jobs, absent):
    """Calls each of `jobs` once; a failing job moves to `absent`, with the reason."""
    for name in list(jobs):
        try:
            with jobs[name].context():
                jobs[name].call()
        except Exception as error:
            absent[name] = str(error).partition("\n")[0][:200]
            del jobs[name]
    return jobs, absent


def versions():
    found = {"python": sys.version.split()[0]}
    if torch:
        found["torch"] = torch.__version__
        found["torch_isa"] = torch.backends.cpu.get_cpu_capability()
    if onnxruntime:
        found["onnxruntime"] = onnxruntime.__version__
    if openvino:
        found["openvino"] = openvino.__version__.partition("-")[0]
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
    """Returns the seconds so far in which threads of this process were ready to run but had no processor (Linux)."""
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(OSError), open(path) as file:
            total += int(file.read().split()[1])
    return total / 1e9


def measure(job, threads, seconds, look, tries, limit):
    clock = time.thread_time if threads == 1 else time.perf_counter

    def take(call, together):
        before, calls, start = 0 if threads == 1 else waited(), 0, clock()
        while True:
            for _ in range(together):
                call()
            calls += together * job.calls
            elapsed = clock() - start
            if elapsed >= seconds:
                break
        return elapsed / calls, calls, threads == 1 or waited() - before <= limit * elapsed

    with job.context():
        each, _, _ = take(job.call, 1)
        together = max(int(look / each / job.calls), 1)
        for _ in range(tries):
            each, calls, calm = take(job.call, together)
            if calm:
                break
    return {"seconds": each, "calls": calls, "calm": calm, "settle": settle()}


def errors(truth, path, jobs):
    """Returns the errors of an answer in a file and of every readable job, relative to the norm of `truth`."""
    norm = np.linalg.norm(truth)
    error = lambda y: float(np.linalg.norm(y - truth) / norm)
    found = {"elsa": error(np.fromfile(path, "<f4").reshape(truth.shape))}
    for name, job in jobs.items():
        if job.read:
            with job.context():
                found[name] = error(job.read())
    return found


def serve(prepare, exact):
    """Answers until its input ends. `prepare(request)` makes (problem, jobs, absent), `exact(problem)` the answer in f64."""
    jobs, problem, threads = {}, None, 1
    with torch.inference_mode() if torch else contextlib.nullcontext():
        for line in sys.stdin:
            request = json.loads(line)
            if "check" in request:
                found = errors(exact(problem), request["check"], jobs)
                settle()
                answer(found)
            elif "slice" in request:
                limits = (request[name] for name in ("seconds", "look", "tries", "waited"))
                answer(measure(jobs[request["slice"]], threads, *limits))
            else:
                threads = request["threads"]
                problem, jobs, absent = prepare(request)
                settle()
                answer({"jobs": list(jobs), "absent": absent, "versions": versions()})
