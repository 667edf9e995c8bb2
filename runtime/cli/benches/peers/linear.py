"""Peers of linear attention on the CPU, measured slice by slice at the request of the benchmark `peers` (see slices.py).

{"rule": "linear" | "gated" | "delta" | "gated-delta", "per_dim": true | false, "sizes": [heads, tokens, d], "threads": T,
 "dir": FOLDER}
    prepares a problem from the files q, k, v in FOLDER (little-endian f32, [tokens, heads, d]), and decay ([tokens, heads, 1]
    or, with per_dim, [tokens, heads, d]) and beta ([tokens, heads]) if the rule has them.

    onnxruntime      LinearAttention of com.microsoft
    ggml             GATED_DELTA_NET, if ELSA_PEERS_GGML names the folder of libggml-base.so and libggml-cpu.so
    torch-chunk      chunks of 64 in PyTorch, as models compute without an installed kernel
    torch-recurrent  token by token in PyTorch, up to 256 tokens

All read the same memory in layout [tokens, heads, d], and all write the last state in addition to the output.
"""
import ctypes
import os

from slices import Job, np, onnxruntime, serve, torch, usable

if onnxruntime:
    try:
        from onnx import TensorProto, helper
    except ImportError:
        onnxruntime = None

CHUNK = 64
# Limit in tokens: PyTorch takes some 50 us per token, however small the sizes are.
LONGEST_RECURRENT = 256


class Problem:
    """Tensors of a request, f32: q, k, v, decay [tokens, heads, d | 1] and beta [tokens, heads]; None if the rule lacks them."""

    def __init__(self, request):
        self.rule, (heads, tokens, d) = request["rule"], request["sizes"]
        self.sizes = heads, tokens, d
        read = lambda name, *shape: np.fromfile(os.path.join(request["dir"], name), "<f4").reshape(tokens, heads, *shape)
        self.q, self.k, self.v = (read(name, d) for name in "qkv")
        self.decay = read("decay", d if request["per_dim"] else 1) if "gated" in self.rule else None
        self.beta = read("beta") if "delta" in self.rule else None

    def exact(self):
        """Returns the output [tokens, heads, d] in f64, token by token."""
        heads, tokens, d = self.sizes
        state, y = np.zeros((heads, d, d)), np.zeros((tokens, heads, d))
        for t in range(tokens):
            k, u = self.k[t].astype(np.float64), self.v[t].astype(np.float64)
            if self.decay is not None:
                state *= np.exp(self.decay[t].astype(np.float64))[:, :, None]
            if self.beta is not None:
                u = self.beta[t, :, None] * (u - (k[:, None] @ state)[:, 0])
            state += k[:, :, None] * u[:, None]
            y[t] = (self.q[t, :, None].astype(np.float64) @ state)[:, 0]
        return y / np.sqrt(d)


def by_onnxruntime(problem, threads):
    heads, tokens, d = problem.sizes
    given = [problem.q, problem.k, problem.v, None, problem.decay, problem.beta]
    names = [name if x is not None else "" for name, x in zip(["q", "k", "v", "past", "decay", "beta"], given)]
    feed = {name: x.reshape(1, tokens, -1) for name, x in zip(names, given) if name}
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    shapes = {"y": (1, tokens, heads * d), "present": (1, heads, d, d)}
    rule = problem.rule.replace("-", "_")
    node = helper.make_node("LinearAttention", names, list(shapes), domain="com.microsoft", update_rule=rule,
                            q_num_heads=heads, kv_num_heads=heads)
    graph = helper.make_graph([node], "linear", [info(name, x.shape) for name, x in feed.items()],
                              [info(*x) for x in shapes.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    # ONNX Runtime allocates the memory: it computes states in place, and takes 1.6 times as long if they are not aligned
    # to its vectors. numpy arrays are not.
    own = lambda shape: onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "cpu", 0)
    for name, x in feed.items():
        value = own(x.shape)
        value.update_inplace(np.ascontiguousarray(x))
        binding.bind_ortvalue_input(name, value)
    out = {name: own(shape) for name, shape in shapes.items()}
    for name, x in out.items():
        binding.bind_ortvalue_output(name, x)
    call = lambda: session.run_with_iobinding(binding)

    def read():
        call()
        return out["y"].numpy().reshape(tokens, heads, d)

    return Job(call, read)


class Ggml:
    """Functions of ggml that build a graph of one node and run it."""

    def __init__(self, folder):
        load = lambda name: ctypes.CDLL(os.path.join(folder, name), mode=ctypes.RTLD_GLOBAL)
        self.base, self.cpu = load("libggml-base.so"), load("libggml-cpu.so")

    def __call__(self, name, result, *arguments):
        function = getattr(self.cpu if name.startswith("backend_cpu") else self.base, "ggml_" + name)
        function.restype = result
        return function(*arguments)


class InitParams(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def by_ggml(problem, threads):
    heads, tokens, d = problem.sizes
    ggml = Ggml(os.environ["ELSA_PEERS_GGML"])
    pointer, long = ctypes.c_void_p, ctypes.c_int64
    context = pointer(ggml("init", pointer, InitParams(1 << 20, None, True)))
    tensor = lambda *shape: pointer(ggml("new_tensor_4d", pointer, context, 0, *(long(n) for n in shape)))
    # ggml lists sizes from the innermost axis. The rule without gates has gates of 1.
    decay = problem.decay if problem.decay is not None else np.zeros((tokens, heads, 1), np.float32)
    given = [problem.q, problem.k, problem.v, decay, problem.beta, np.zeros((heads, d, d), np.float32)]
    shapes = [(d, heads, tokens, 1)] * 3 + [(decay.shape[2], heads, tokens, 1), (1, heads, tokens, 1), (d, d, heads, 1)]
    inputs = [tensor(*shape) for shape in shapes]
    node = pointer(ggml("gated_delta_net", pointer, context, *inputs, long(1)))
    graph = pointer(ggml("new_graph", pointer, context))
    ggml("build_forward_expand", None, graph, node)
    backend = pointer(ggml("backend_cpu_init", pointer))
    ggml("backend_cpu_set_n_threads", None, backend, threads)
    # Tensors live as long as the process, so as few as possible are made.
    ggml("backend_alloc_ctx_tensors", pointer, context, backend)
    for x, to in zip(given, inputs):
        x = np.ascontiguousarray(x)
        ggml("backend_tensor_set", None, to, pointer(x.ctypes.data), ctypes.c_size_t(0), ctypes.c_size_t(x.nbytes))
    call = lambda: ggml("backend_graph_compute", ctypes.c_int, backend, graph)

    def read():
        call()
        y = np.empty((tokens, heads, d), np.float32)
        ggml("backend_tensor_get", None, node, pointer(y.ctypes.data), ctypes.c_size_t(0), ctypes.c_size_t(y.nbytes))
        return y

    return Job(call, read)


def chunked(q, k, v, decay, beta):
    """Returns output and last state, computed in chunks: [heads, tokens, d], decay [heads, tokens], beta [heads, tokens, 1]."""
    tokens, d = q.shape[1:]
    pad = -tokens % CHUNK
    cut = lambda x: torch.nn.functional.pad(x, (0, 0, 0, pad)).unflatten(1, (-1, CHUNK))
    q, k, v = cut(q * d**-0.5), cut(k), cut(v)
    score, written, read = q @ k.mT, v, None
    into = out = within = None
    if decay is not None:
        total = cut(decay[..., None]).cumsum(2)
        into, out = total.exp(), (total[:, :, -1:] - total).exp()
        within = (total - total.mT).tril().exp()
        score = score * within
    score = score.tril()
    if beta is not None:
        beta = cut(beta)
        system = (k * beta) @ k.mT
        system = system if within is None else system * within
        both = torch.cat([v * beta, k * beta if into is None else k * beta * into], -1)
        both = torch.linalg.solve_triangular(system.tril(-1), both, upper=False, unitriangular=True)
        written, read = both.split([v.shape[-1], d], -1)
    q, k = (q, k) if into is None else (q * into, k * out)
    state, y = q.new_zeros(q.shape[0], d, v.shape[-1]), torch.empty_like(v)
    for i in range(q.shape[1]):
        u = written[:, i] if read is None else written[:, i] - read[:, i] @ state
        y[:, i] = q[:, i] @ state + score[:, i] @ u
        state = (state if into is None else state * into[:, i, -1:]) + k[:, i].mT @ u
    return y.flatten(1, 2)[:, :tokens], state


def recurrent(q, k, v, decay, beta):
    """Returns output and last state, token by token: [tokens, heads, d], decay [tokens, heads, d | 1], beta [tokens, heads]."""
    tokens, heads, d = q.shape
    state, y, q = q.new_zeros(heads, d, v.shape[-1]), torch.empty_like(v), q * d**-0.5
    gates = None if decay is None else decay.exp()[..., None]
    for t in range(tokens):
        key, u = k[t, :, :, None], v[t]
        if gates is not None:
            state = state * gates[t]
        if beta is not None:
            u = (u - (state * key).sum(1)) * beta[t, :, None]
        state = state + key * u[:, None]
        y[t] = (state * q[t, :, :, None]).sum(1)
    return y, state


def torch_jobs(problem, absent):
    given = [problem.q, problem.k, problem.v, problem.decay, problem.beta]
    q, k, v, decay, beta = (None if x is None else torch.from_numpy(x) for x in given)
    found = {}

    def job(name, call, finish):
        found[name] = Job(call, lambda: np.ascontiguousarray(finish(call()[0]).numpy()))

    if decay is not None and decay.shape[2] != 1:
        absent["torch-chunk"] = "no gates per dim"
    else:
        turn = lambda x: x if x is None else x.transpose(0, 1).contiguous()

        def call():
            gates = None if decay is None else turn(decay)[..., 0]
            return chunked(turn(q), turn(k), turn(v), gates, beta if beta is None else turn(beta)[..., None])

        job("torch-chunk", call, lambda y: y.transpose(0, 1))
    if problem.sizes[1] > LONGEST_RECURRENT:
        absent["torch-recurrent"] = f"more than {LONGEST_RECURRENT} tokens"
    else:
        job("torch-recurrent", lambda: recurrent(q, k, v, decay, beta), lambda y: y)
    return found


def prepare(request):
    problem, threads = Problem(request), request["threads"]
    jobs, absent = {}, {}
    if torch is None:
        absent["torch"] = "not installed"
    else:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        jobs.update(torch_jobs(problem, absent))
    makers = {"onnxruntime": by_onnxruntime, "ggml": by_ggml}
    if onnxruntime is None:
        absent["onnxruntime"] = "not installed"
        del makers["onnxruntime"]
    if "ELSA_PEERS_GGML" not in os.environ or problem.beta is None:
        absent["ggml"] = "without a rate" if "ELSA_PEERS_GGML" in os.environ else "ELSA_PEERS_GGML names no folder"
        del makers["ggml"]
    for name, make in makers.items():
        try:
            jobs[name] = make(problem, threads)
        except Exception as error:
            absent[name] = str(error).partition("\n")[0][:200]
    return problem, *usable(jobs, absent)


serve(prepare, Problem.exact)
