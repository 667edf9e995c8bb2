"""Peers of attention on the CPU, measured slice by slice at the request of the benchmark `peers` (see slices.py).

{"shape": [batch, heads, queries, keys, d], "kv_heads": HK, "causal": null | "top-left" | "bottom-right",
 "window": null | [L, R], "mask": null | {"axes": [4 sizes], "boolean": true | false},
 "windows": null | {"picture": [H, W], "size": [h, w], "shift": [a, b]},
 "dtype": "f32", "threads": T, "dir": FOLDER, "isa": null | "avx2"}
    prepares a problem from the files q, k, v in FOLDER (little-endian f32, [batch, heads, tokens, d]), mask (bytes if
    it is boolean, else f32) and, with windows, table (f32, [(2h - 1) (2w - 1), heads]).

Inputs that a peer accepts ready-made are made outside the clock: booleans as -inf, a table of positions and the mask of
shifted windows as one tensor, and repeated keys if an operator has no grouped heads. Subnormal numbers are flushed to zero,
because ONNX Runtime's softmax produces some for every masked pair and stalls when it multiplies them.
"""
import math
import os

from slices import Job, np, onnxruntime, openvino, serve, torch, usable

if torch:
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
if onnxruntime:
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        onnxruntime = None

SGEMM = 768


def spread(x, heads):
    """Repeats keys or values [batch, kv_heads, tokens, d] for every head."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def sides(grid):
    """Returns the pairs of tokens that attend each other, bool [windows, n, n]: Swin's regions of a rolled picture."""
    (height, width), (h, w), (a, b) = grid["picture"], grid["size"], grid["shift"]
    regions = np.zeros((height, width), int)
    cuts = lambda side, shift: [slice(0, -side), slice(-side, -shift or None), slice(-shift, None) if shift else slice(0, 0)]
    for i, rows in enumerate(cuts(h, a)):
        for j, columns in enumerate(cuts(w, b)):
            regions[rows, columns] = 3 * i + j
    regions = regions.reshape(height // h, h, width // w, w).transpose(0, 2, 1, 3).reshape(-1, h * w)
    return regions[:, :, None] == regions[:, None, :]


def relative(table, size):
    """Returns the bias of a table of relative positions [entries, heads] as [1, heads, n, n]."""
    h, w = size
    at = np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij")).reshape(2, -1)
    apart = at[:, :, None] - at[:, None, :] + np.array([h - 1, w - 1])[:, None, None]
    return np.ascontiguousarray(table[apart[0] * (2 * w - 1) + apart[1]].transpose(2, 0, 1)[None])


class Problem:
    """Tensors of a request, f32 [batch, heads, tokens, d], and the terms added to scores, separately and as a sum.

    mask     bool or f32 [batch | 1, heads | 1, queries | 1, keys], or None
    allowed  bool [1, 1, queries, keys] of causality and window, or None
    bias     f32 [1, heads, n, n] of a table, or None
    shifted  bool [windows, 1, n, n] of shifted windows, or None
    """

    def __init__(self, request):
        batch, heads, queries, keys, d = self.sizes = request["shape"]
        read = lambda name, kind, shape: np.fromfile(os.path.join(request["dir"], name), kind).reshape(shape)
        self.q = read("q", "<f4", (batch, heads, queries, d))
        self.k, self.v = (read(name, "<f4", (batch, request["kv_heads"], keys, d)) for name in "kv")
        self.repeated = [spread(x, heads) for x in (self.k, self.v)]
        self.mask = self.allowed = self.bias = self.shifted = None
        if mask := request["mask"]:
            self.mask = read("mask", "u1" if mask["boolean"] else "<f4", mask["axes"])
            self.mask = self.mask != 0 if mask["boolean"] else self.mask
        causal, window, grid = request["causal"], request["window"], request["windows"]
        # Alignments of the causal mask: both, if they give the same diagonal.
        corners = {"top-left", "bottom-right"} if queries == keys else {causal}
        self.corners = corners if causal and not window else set()
        if causal or window:
            past = np.arange(queries)[:, None] + (0 if causal == "top-left" else keys - queries) - np.arange(keys)
            left, right = window or (-1, -1)
            right = 0 if causal else right
            allowed = ((left < 0) | (past <= left)) & ((right < 0) | (-past <= right))
            self.allowed = allowed[None, None]
        if grid:
            self.bias = relative(read("table", "<f4", (-1, heads)), grid["size"])
            if any(grid["shift"]):
                self.shifted = sides(grid)[:, None]
        self.added = self.sum()

    def parts(self):
        return [x for x in (self.mask, self.allowed, self.bias, self.shifted) if x is not None]

    def sum(self):
        """Returns all parts as one f32 tensor, -inf for masked pairs; its batch divides the batch of the queries."""
        total = None
        for part in self.parts():
            part = np.where(part, np.float32(0), np.float32(-np.inf)) if part.dtype == bool else part
            if total is not None and {1, len(total), len(part)} == {1, max(len(total), len(part))}:
                total = total + part
            elif total is not None:
                # One part has the axis of the entire batch, the other that of the windows of a picture.
                few, many = sorted((total, part), key=len)
                total = np.tile(few, (len(many) // len(few), 1, 1, 1)) + many
            else:
                total = part
        return total

    def view(self, x):
        """Reshapes `x` to [pictures, windows * heads, ...], so that terms of all windows broadcast over pictures."""
        if self.added is None or len(self.added) in (1, len(x)):
            return x
        return x.reshape(len(x) // len(self.added), -1, *x.shape[2:])

    def viewed(self):
        """Returns the added terms, for tensors reshaped by `view`."""
        if self.added is None or len(self.added) in (1, self.sizes[0]):
            return self.added
        tokens = self.added.shape[2:]
        return np.broadcast_to(self.added, (len(self.added), self.sizes[1], *tokens)).reshape(1, -1, *tokens)

    def exact(self):
        """Returns the answer in f64, computed head by head."""
        batch, heads, queries, keys, d = self.sizes
        y = np.zeros(self.q.shape, np.float64)
        for b, h in np.ndindex(batch, heads):
            k, v = self.repeated[0][b, h].astype(np.float64), self.repeated[1][b, h].astype(np.float64)
            s = self.q[b, h].astype(np.float64) @ k.T / math.sqrt(d)
            if self.added is not None:
                s = s + self.added[b % len(self.added), h % self.added.shape[1]]
            top = s.max(-1, keepdims=True)
            p = np.exp(s - np.where(np.isneginf(top), 0, top))
            total = p.sum(-1, keepdims=True)
            y[b, h] = (p / np.where(total == 0, 1, total)) @ v
        return y


def torch_jobs(problem, dtype):
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    tensor = lambda x: torch.from_numpy(np.array(x, order="C"))
    q, k, v = (tensor(x).to(kind) for x in (problem.q, problem.k, problem.v))
    grouped = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    parts = problem.parts()
    flash, math = (lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)), (lambda: sdpa_kernel(SDPBackend.MATH))

    def jobs(name, call):
        read = lambda: call().float().numpy().reshape(problem.q.shape)
        return {name: Job(call, read), name + "-flash": Job(call, read, flash), name + "-math": Job(call, read, math)}

    sdpa = F.scaled_dot_product_attention
    if not parts:
        return jobs("torch", lambda: sdpa(q, k, v, **grouped))
    if "top-left" in problem.corners and len(parts) == 1:
        return jobs("torch", lambda: sdpa(q, k, v, is_causal=True, **grouped))
    found = {}
    added = tensor(problem.viewed()).to(kind)
    a, b, c = (problem.view(x) for x in (q, k, v))
    if len(parts) == 1 and parts[0].dtype == bool and problem.shifted is None:
        mask = tensor(parts[0])
        found = jobs("torch", lambda: sdpa(q, k, v, attn_mask=mask, **grouped))
        # Equal to -inf, which PyTorch would otherwise make of the booleans in every call.
        call = lambda: sdpa(a, b, c, attn_mask=added, **grouped)
        read = lambda: call().float().numpy().reshape(problem.q.shape)
        found["torch-added"] = Job(call, read)
    else:
        found = jobs("torch", lambda: sdpa(a, b, c, attn_mask=added, **grouped))
    if problem.bias is not None and problem.mask is None:
        # As the model is written: the bias that all windows share, then the mask of each window.
        batch, heads, n, _, d = problem.sizes
        scale, bias = d**-0.5, tensor(problem.bias).to(kind)
        shifted = None
        if problem.shifted is not None:
            shifted = tensor(np.where(problem.shifted, np.float32(0), np.float32(-np.inf)))[None].to(kind)

        def call():
            s = (q * scale) @ k.transpose(-2, -1) + bias
            if shifted is not None:
                s = (s.view(-1, shifted.shape[1], heads, n, n) + shifted).view(-1, heads, n, n)
            return torch.softmax(s, -1) @ v

        found["torch-model"] = Job(call, lambda: call().float().numpy())
    return found


def sgemm_job():
    a, b, c = (torch.randn(SGEMM, SGEMM) for _ in range(3))
    return Job(lambda: torch.mm(a, b, out=c))


class Graph:
    """A model under construction: bound inputs, constants, nodes."""

    def __init__(self, opset):
        self.nodes, self.feed, self.constants, self.opset = [], {}, [], opset
        # Library of an operator that is not ONNX Runtime's own.
        self.library = None

    def bound(self, name, x):
        self.feed[name] = np.ascontiguousarray(x)
        return name

    def constant(self, name, x):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(x), name))
        return name

    def node(self, kind, inputs, output, **attributes):
        domain = {"MultiHeadAttention": "com.microsoft", "ElsaAttention": "ai.elsa"}.get(kind, "")
        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def job(self, shape, threads, finish):
        """Runs the model to its output `y` of `shape`; `finish` converts it to [batch, heads, queries, d]."""
        kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL,
                 np.dtype(np.int32): TensorProto.INT32}
        info = lambda name, x: helper.make_tensor_value_info(name, kinds[x.dtype], x.shape)
        y = np.empty(shape, np.float32)
        graph = helper.make_graph(
            self.nodes, "attention", [info(*x) for x in self.feed.items()], [info("y", y)], self.constants)
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(x, 1) for x in ("com.microsoft", "ai.elsa"))]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        if self.library:
            options.register_custom_ops_library(self.library)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, x in self.feed.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
        out = onnxruntime.OrtValue.ortvalue_from_numpy(y)
        binding.bind_ortvalue_output("y", out)
        call = lambda: session.run_with_iobinding(binding)

        def read():
            call()
            return finish(out.numpy())

        return Job(call, read)


def contributed(problem, threads):
    """Returns the job of ONNX Runtime's MultiHeadAttention, in its layout [batch, tokens, heads * d]."""
    batch, heads, queries, keys, d = problem.sizes
    rows = lambda x: x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], heads * d)
    graph = Graph(17)
    inputs = [graph.bound("q", rows(problem.q)), *(graph.bound(n, rows(x)) for n, x in zip("kv", problem.repeated))]
    causal = {"unidirectional": 1} if "bottom-right" in problem.corners else {}
    rest = [x for x in problem.parts() if not (causal and x is problem.allowed)]
    if len(rest) == 1 and rest[0] is problem.mask and rest[0].dtype == bool and rest[0].shape[1:3] == (1, 1):
        inputs += ["", graph.bound("padding", rest[0].reshape(batch, keys).astype(np.int32))]
    elif rest:
        added = problem.added
        axes = [1 if len(added) == 1 else batch, added.shape[1], queries, keys]
        if len(added) not in (1, batch):
            added = np.tile(added, (batch // len(added), 1, 1, 1))
        inputs += ["", "", graph.bound("added", np.broadcast_to(added, axes))]
    graph.node("MultiHeadAttention", inputs, "y", num_heads=heads, **causal)
    finish = lambda y: y.reshape(batch, queries, heads, d).transpose(0, 2, 1, 3)
    return graph.job((batch, queries, heads * d), threads, finish)


def standard(problem, threads):
    """Returns the job of ONNX's operator Attention, in the layout [batch, heads, tokens, d]."""
    graph = Graph(23)
    q, k, v = problem.view(problem.q), problem.view(problem.k), problem.view(problem.v)
    inputs = [graph.bound(*x) for x in zip("qkv", (q, k, v))]
    parts = problem.parts()
    causal = {"is_causal": 1} if "top-left" in problem.corners and len(parts) == 1 else {}
    if parts and not causal:
        boolean = len(parts) == 1 and parts[0].dtype == bool and problem.shifted is None
        mask = parts[0] if boolean else problem.viewed()
        # The operator broadcasts only the batch and the heads of a mask.
        inputs.append(graph.bound("mask", np.broadcast_to(mask, (*mask.shape[:2], *problem.sizes[2:4]))))
    graph.node("Attention", inputs, "y", **causal)
    return graph.job(q.shape, threads, lambda y: y.reshape(problem.q.shape))


def products(problem, threads, as_written):
    """Returns the job of two products and a softmax, as models are exported. `as_written`: with windows, the bias and the
    mask of shifted windows are added separately, not as one tensor."""
    graph = Graph(17)
    batch, heads, queries, keys, d = problem.sizes
    q = problem.q if as_written else problem.view(problem.q)
    k, v = problem.repeated if as_written else (problem.view(x) for x in problem.repeated)
    graph.bound("q", q), graph.bound("k", k), graph.bound("v", v)
    graph.node("Transpose", ["k"], "kt", perm=[0, 1, 3, 2])
    graph.node("MatMul", ["q", "kt"], "products")
    scores = graph.node("Mul", ["products", graph.constant("scale", np.float32(d**-0.5))], "scaled")
    if as_written:
        scores = graph.node("Add", [scores, graph.constant("bias", problem.bias)], "biased")
        if problem.shifted is not None:
            windows = len(problem.shifted)
            apart = np.where(problem.shifted, np.float32(0), np.float32(-np.inf))[None]
            divided = graph.constant("divided", np.array([batch // windows, windows, heads, queries, keys]))
            whole = graph.constant("whole", np.array([batch, heads, queries, keys]))
            scores = graph.node("Reshape", [scores, divided], "windows")
            scores = graph.node("Add", [scores, graph.constant("apart", apart)], "masked")
            scores = graph.node("Reshape", [scores, whole], "sequences")
    elif problem.added is not None:
        # A model's bias is a constant; a mask is not.
        make = graph.bound if problem.bias is None else graph.constant
        scores = graph.node("Add", [scores, make("added", problem.viewed())], "biased")
    weights = graph.node("Softmax", [scores], "weights", axis=-1)
    graph.node("MatMul", [weights, "v"], "y")
    return graph.job(q.shape, threads, lambda y: y.reshape(problem.q.shape))


def onnxruntime_forms(problem):
    """Returns every form in which ONNX Runtime computes the problem, by name."""
    forms = {"onnxruntime": contributed, "onnxruntime-attention": standard,
             "onnxruntime-products": lambda *x: products(*x, False)}
    if problem.bias is not None and problem.mask is None:
        forms["onnxruntime-model"] = lambda *x: products(*x, True)
    return forms


def openvino_job(problem, threads):
    """Returns the job of OpenVINO's operator ScaledDotProductAttention, in the layout [batch, heads, tokens, d]. The plugin
    computes it in the calling thread and `threads - 1` others."""
    from openvino import opset13 as operators

    parts = problem.parts()
    causal = "top-left" in problem.corners and len(parts) == 1
    fed = [problem.view(x) for x in (problem.q, *problem.repeated)]
    if parts and not causal:
        boolean = len(parts) == 1 and parts[0].dtype == bool and problem.shifted is None
        mask = parts[0] if boolean else problem.viewed()
        fed.append(np.broadcast_to(mask, (*mask.shape[:2], *problem.sizes[2:4])))
    fed = [np.array(x, order="C") for x in fed]
    inputs = [operators.parameter(x.shape, x.dtype.type) for x in fed]
    answer = operators.scaled_dot_product_attention(*inputs, causal=causal)
    model = openvino.Model([answer], inputs, "attention")
    options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
               "INFERENCE_PRECISION_HINT": "f32", "CPU_DENORMALS_OPTIMIZATION": True}
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    for at, x in enumerate(fed):
        request.set_input_tensor(at, openvino.Tensor(x, shared_memory=True))
    y = np.empty(fed[0].shape, np.float32)
    request.set_output_tensor(openvino.Tensor(y, shared_memory=True))
    # The method of the class itself first converts the inputs, which takes as long as a call on a single token.
    infer = super(openvino.InferRequest, request).infer
    # A tensor does not keep the array that it shares.
    call = lambda kept=fed: infer({}, share_outputs=True, decode_strings=False)

    def read():
        call()
        return y.reshape(problem.q.shape)

    return Job(call, read)


def prepare(request):
    problem, dtype, threads, isa = Problem(request), request["dtype"], request["threads"], request["isa"]
    jobs, absent = {}, {}
    if torch is None:
        absent["torch"] = absent["sgemm"] = "not installed"
    else:
        torch.set_num_threads(threads)
        jobs["sgemm"] = sgemm_job()
        jobs.update(torch_jobs(problem, dtype))
    if onnxruntime is None:
        absent["onnxruntime"] = "not installed"
    elif dtype != "f32":
        absent["onnxruntime"] = f"its operators have no {dtype} on the CPU"
    elif isa is not None:
        absent["onnxruntime"] = f"cannot be held to {isa}"
    else:
        for name, form in onnxruntime_forms(problem).items():
            try:
                jobs[name] = form(problem, threads)
            except Exception as error:
                absent[name] = str(error).partition("\n")[0][:200]
    if openvino is None:
        absent["openvino"] = "not installed"
    elif dtype != "f32":
        absent["openvino"] = f"its model is in f32, not {dtype}"
    elif isa is not None:
        absent["openvino"] = f"cannot be held to {isa}"
    else:
        try:
            jobs["openvino"] = openvino_job(problem, threads)
        except Exception as error:
            absent["openvino"] = str(error).partition("\n")[0][:200]
    if torch:
        torch.set_flush_denormal(True)
    return problem, *usable(jobs, absent)


if __name__ == "__main__":
    serve(prepare, Problem.exact)
