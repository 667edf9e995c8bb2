"""Calls of this library through each of its layers, and of peers, at the request of the benchmark `peers` (see slices.py).

A request is that of peers.py, for f32 without masks, and has {"nodes": N}. `ELSA_LAYERS` names the folder that `cargo xtask build` makes for
this machine, and `ELSA_LAYERS_C` the library made from layers.c. elsa.py is on PYTHONPATH.

A job whose name ends in "-node" is a chain of N nodes in one session. Its time includes the call of the session, which
the job "session" measures alone.
"""
import ctypes
import os

import peers
from slices import Job, np, onnxruntime, openvino, serve, torch, usable

# Number of calls between two looks at the clock in C, so that the call from Python does not count.
TOGETHER = 64


def c_jobs(problem, threads):
    """Returns the jobs of the shipped library through C: the ways of layers.c."""
    library = ctypes.CDLL(os.environ["ELSA_LAYERS_C"])
    library.layers_bind.restype = ctypes.c_void_p
    library.layers_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    y = np.empty(problem.q.shape, np.float32)
    sizes = (ctypes.c_size_t * 5)(*problem.sizes)
    addresses = [ctypes.c_void_p(x.ctypes.data) for x in (problem.q, problem.k, problem.v, y)]
    bound = library.layers_bind(sizes, *addresses, ctypes.c_size_t(threads))
    if not bound:
        raise RuntimeError("layers_bind failed")

    def job(way):
        def call():
            if status := library.layers_run(bound, TOGETHER, way):
                raise RuntimeError(f"layers_run: status {status}")

        def read():
            call()
            return y

        return Job(call, read, calls=TOGETHER)

    return {"c": job(0), "c-set": job(1), "c-run": job(2)}


def python_jobs(problem, threads):
    """Returns the jobs of elsa.py: over arrays of numpy, and in place of torch's function."""
    import elsa

    engine = elsa.Engine(threads=threads)
    q, k, v = (np.array(x, order="C") for x in (problem.q, problem.k, problem.v))
    y = np.empty(q.shape, np.float32)
    call = lambda: elsa.attention(q, k, v, out=y, engine=engine)
    jobs = {"python": Job(call, call), "python-new": Job(lambda: elsa.attention(q, k, v, engine=engine))}
    if torch:
        a, b, c = map(torch.from_numpy, (q, k, v))
        functional = torch.nn.functional
        patched = lambda: functional.scaled_dot_product_attention(a, b, c)
        jobs["torch-patched"] = Job(patched, lambda: patched().numpy(), lambda: elsa.patch(engine))
    return jobs


def chain(problem, threads, kind, nodes):
    """Returns the job of a session with a chain of nodes that each replace the queries."""
    graph = peers.Graph(23)
    if kind == "ElsaAttention":
        graph.library = os.path.join(os.environ["ELSA_LAYERS"], "lib", "libelsa_ort.so")
    last = graph.bound("q", problem.q)
    others = [] if kind == "Identity" else [graph.bound(*x) for x in zip("kv", (problem.k, problem.v))]
    for at in range(nodes):
        last = graph.node(kind, [last, *others], "y" if at == nodes - 1 else f"x{at}")
    return graph.job(problem.q.shape, threads, lambda y: y)


def prepare(request):
    problem, threads, nodes = peers.Problem(request), request["threads"], request["nodes"]
    jobs = {**c_jobs(problem, threads), **python_jobs(problem, threads)}
    absent = {}
    if torch:
        torch.set_num_threads(threads)
        jobs["torch"] = peers.torch_jobs(problem, "f32")["torch"]
        torch.set_flush_denormal(True)
    else:
        absent["torch"] = "not installed"
    if onnxruntime:
        jobs["session"] = chain(problem, threads, "Identity", 1)
        for name, kind in [("onnxruntime-node", "ElsaAttention"), ("onnxruntime-attention-node", "Attention")]:
            jobs[name] = Job(chain(problem, threads, kind, nodes).call)
        jobs["onnxruntime"] = chain(problem, threads, "ElsaAttention", 1)
        jobs["onnxruntime-attention"] = chain(problem, threads, "Attention", 1)
        jobs["session"].read = None
    else:
        absent["onnxruntime"] = "not installed"
    if openvino:
        jobs["openvino"] = peers.openvino_job(problem, threads)
    else:
        absent["openvino"] = "not installed"
    return problem, *usable(jobs, absent)


if __name__ == "__main__":
    serve(prepare, peers.Problem.exact)
