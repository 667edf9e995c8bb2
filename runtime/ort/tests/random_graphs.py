"""The models of random_models.py: draw(seed, number) makes one, with the inputs and the sizes at which it runs."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

F32, F16, I64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
# Sides of the square constants from which masks are cut, as exporters of decoders store them.
BUFFER = 320

LAYOUTS = [
    "heads", "heads", "grouped", "one KV head", "rows", "rows", "tokens", "block", "block", "packed", "five axes", "flat",
    "matrix", "past", "free heads", "own batch", "products of 2", "products of 5", "MultiHeadAttention",
    "MultiHeadAttention", "Attention 23, rows", "Attention 23, rows", "Attention 23, heads",
]
FUSED = ("MultiHeadAttention", "Attention 23, rows", "Attention 23, heads")
# Layouts that take one input for queries, keys and values.
SELF = ("block", "packed", "five axes", "matrix")
MASKS = [
    "none", "none", "causal, first", "causal, last", "chosen by an input", "added input", "padding", "cut from tril",
    "cut from tril, last", "cut from a window", "Trilu of Trilu", "chunks", "blocks", "ALiBi", "ALiBi, causal",
    "padding, causal", "prefix", "open window", "weak fill",
]
SCALES = [
    "constant", "constant", "none", "of the head's shape", "half on each side", "log of n", "step in n", "clipped n",
    "soft cap",
]
# Keys of windows, chunks and blocks; the longer ones are drawn less often.
SHORT, LONG = [3, 5, 8, 9, 16], [20, 64, 100, 256]


class Graph:
    """Nodes under construction."""

    def __init__(self, half):
        self.nodes, self.constants, self.made = [], [], 0
        self.half, self.dtype, self.element = half, np.float16 if half else np.float32, F16 if half else F32

    def name(self):
        self.made += 1
        return "t%d" % self.made

    def op(self, kind, *inputs, **attributes):
        name = attributes.pop("to_name", None) or self.name()
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, array):
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def integer(self, value):
        return self.constant(np.array(value, np.int64))

    def number(self, value):
        return self.constant(np.array(value, self.dtype))

    def float(self, name):
        return self.op("Cast", name, to=self.element)

    def size(self, tensor, axis):
        """Returns the size of an axis as a scalar."""
        return self.op("Gather", self.op("Shape", tensor), self.integer(axis), axis=0)

    def range(self, n, turned=False):
        """Returns 0 to n - 1, as a row or a column."""
        all_ = self.op("Range", self.integer(0), n, self.integer(1))
        return self.op("Unsqueeze", all_, self.ints(1 if turned else 0))

    def vector(self, scalar):
        return self.op("Unsqueeze", scalar, self.ints(0))


class Drawn:
    """A model and its known properties."""

    def __init__(self, random):
        pick = lambda of: of[int(random.integers(len(of)))]
        self.random = random
        self.layout, self.mask, self.scale = pick(LAYOUTS), pick(MASKS), pick(SCALES)
        self.half = random.random() < 0.25
        self.fused = self.layout in FUSED
        if self.fused:
            self.mask = pick(["none", "causal, first", "chosen by an input", "added input", "causal, last"])
            self.scale = pick(["none", "constant"])
            if self.layout == "MultiHeadAttention" and self.mask == "chosen by an input":
                self.mask = "added input"
        self.g = Graph(self.half)
        self.axes, self.inputs, self.limits = {}, [], [3]
        self.outputs, self.scores, self.v = ["y"], None, "v"
        self.batch_axis, self.token_axis = 0, 2
        # Keys with a broadcast batch are not a call of the operator.
        self.expressible = self.layout != "own batch" and self.mask != "weak fill"
        self.heads, self.dim = pick([2, 2, 3, 4]), pick([4, 8, 8, 16])
        self.kv_heads = self.heads
        if self.layout == "grouped":
            self.kv_heads = pick([2, 3])
            self.heads = self.kv_heads * 2
        if self.layout == "one KV head":
            self.kv_heads = 1
        if self.layout in ("flat", "products of 2"):
            self.heads = self.kv_heads = 1
        if self.fused and self.layout != "MultiHeadAttention" and random.random() < 0.4:
            self.kv_heads = self.heads // 2 if self.heads % 2 == 0 else 1
        self.value_dim = self.dim
        if self.layout in ("heads", "rows", "flat") and random.random() < 0.2:
            self.value_dim = self.dim + 3
        style = pick(["named", "named", "unnamed", "mixed", "fixed"])
        fixed = lambda: style == "fixed" or style == "mixed" and random.random() < 0.5
        self.style = style
        self.itself = self.layout in SELF or random.random() < 0.3
        self.axis("b", 1 if self.layout in ("products of 2", "matrix") else pick([1, 2, 3]), fixed())
        n = pick([1, 2, 5, 7, 12, 16, 17, 23, 33, 40, 64, 100, 300] if style == "fixed" else [5, 7, 11, 12, 16])
        m = n if self.itself else pick([x for x in (1, 3, 6, 9, 13, 16, 24, 37, 65, 129) if x != n])
        if self.layout == "past":
            self.itself = False
            self.axis("n", pick([1, 2, 5]), fixed())
            self.axis("p", pick([3, 8, 11]), fixed())
        else:
            free = fixed()
            self.axis("n", n, free)
            self.axis("m", m, free if self.itself else fixed())
            if self.itself:
                self.axes["m"] = self.axes["n"]
        self.unnamed = style == "unnamed" or style == "mixed" and random.random() < 0.4
        if self.layout == "free heads":
            self.axis("h", self.heads, False)
        if self.layout == "own batch":
            self.axis("kb", 1, False)
        self.build()
        # The axes of a product of three or five axes must be equal, and free axes without names may differ. The first two
        # of five axes are the operator's batch, to which a mask of the first axis alone cannot be broadcast.
        free = self.unnamed and not all(fixed for _, fixed in self.axes.values())
        by_batch = any(name == "mask" and "b" in dims for name, dims, _ in self.inputs)
        if self.layout == "flat" and free or self.layout == "products of 5" and (self.unnamed or by_batch):
            self.expressible = False
        # A mask with a batch broadcasts the scores of one sequence.
        if self.layout == "matrix" and not self.axes["b"][1] and any("b" in dims for _, dims, _ in self.inputs):
            self.expressible = False

    def __str__(self):
        return "%s; mask %s; scale %s; %s axes; %s" % (
            self.layout, self.mask, self.scale, self.style, "f16" if self.half else "f32")

    def axis(self, name, size, fixed):
        self.axes[name] = (size, fixed)

    def limit(self, value):
        self.limits.append(value)
        return value

    def input(self, name, dims, element=None):
        """Adds an input; each axis has a size or a name."""
        self.inputs.append((name, dims, element or self.g.element))
        return name

    # Queries, keys and values of [batch, heads, tokens, dim].

    def build(self):
        g, h, c, d, e = self.g, self.heads, self.kv_heads, self.dim, self.value_dim
        m = "n" if self.itself else "m"
        if self.fused:
            return self.build_fused(m)
        self.rank, out = 4, None
        if self.layout in ("heads", "free heads", "own batch"):
            of = "h" if self.layout == "free heads" else h
            q = self.input("q", ["b", of, "n", d])
            batch = "kb" if self.layout == "own batch" else "b"
            k, v = (self.input(x, [batch, of, m, y]) for x, y in (("k", d), ("v", e)))
        elif self.layout == "grouped":
            q = self.input("q", ["b", h, "n", d])
            k, v = (self.repeat(self.input(x, ["b", c, m, d]), h // c) for x in "kv")
        elif self.layout == "one KV head":
            q = self.input("q", ["b", h, "n", d])
            k, v = (self.input(x, ["b", 1, m, d]) for x in "kv")
        elif self.layout == "past":
            q = self.input("q", ["b", h, "n", d])
            k, v = (g.op("Concat", self.input("past_" + x, ["b", h, "p", d]), self.input(x, ["b", h, "n", d]),
                         axis=2, to_name="present_" + x) for x in "kv")
            self.outputs += ["present_k", "present_v"]
        elif self.layout == "rows":
            q, k, v = (self.split(self.input(x, ["b", y, h * z]), h, z)
                       for x, y, z in (("q", "n", d), ("k", m, d), ("v", m, e)))
            out = "rows"
        elif self.layout == "tokens":
            q, k, v = (g.op("Transpose", self.input(x, ["b", y, h, d]), perm=[0, 2, 1, 3])
                       for x, y in (("q", "n"), ("k", m), ("v", m)))
            out = "rows"
        elif self.layout in ("block", "matrix"):
            width = h * d
            x = self.input("x", ["n", width] if self.layout == "matrix" else ["b", "n", width])
            out = "rows"
            weights = [self.random.standard_normal((width, width)).astype(g.dtype) / g.dtype(width**0.5) for _ in "qkv"]
            q, k, v = (self.split(g.op("MatMul", x, g.constant(w)), h, d) for w in weights)
        elif self.layout == "packed":
            x = self.input("x", ["b", "n", 3 * h * d])
            out = "rows"
            parts = [g.name() for _ in "qkv"]
            g.nodes.append(helper.make_node("Split", [x, g.ints(*[h * d] * 3)], parts, axis=2))
            q, k, v = (self.split(part, h, d) for part in parts)
        elif self.layout == "five axes":
            x = g.op("Transpose", self.input("x", ["b", "n", 3, h, d]), perm=[2, 0, 3, 1, 4])
            out = "rows"
            q, k, v = (g.op("Gather", x, g.integer(i), axis=0) for i in range(3))
        elif self.layout == "flat":
            self.rank = 3
            q, k, v = (self.input(x, ["b", y, z]) for x, y, z in (("q", "n", d), ("k", m, d), ("v", m, e)))
        elif self.layout == "products of 2":
            self.rank = 2
            q, k, v = (self.input(x, [y, d]) for x, y in (("q", "n"), ("k", m), ("v", m)))
        else:
            self.rank = 5
            q, k, v = (self.input(x, ["b", 2, h, y, d]) for x, y in (("q", "n"), ("k", m), ("v", m)))
        self.n, self.m = (g.size(x, self.rank - 2) for x in (q, k))
        scores = self.masked(self.scaled(q, k))
        self.scores, self.v = scores, v
        weights = self.softmax(scores)
        self.token_axis, self.batch_axis = self.rank - 2, None if self.rank == 2 else 0
        if out == "rows":
            y = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
            if self.layout == "matrix":
                g.op("Reshape", y, g.ints(-1, h * e), to_name="y")
                self.token_axis, self.batch_axis = 0, None
            else:
                g.op("Reshape", y, g.ints(0, 0, h * e), to_name="y")
                self.token_axis = 1
        elif self.random.random() < 0.2:
            turn = list(range(self.rank - 2)) + [self.rank - 1, self.rank - 2]
            turned = g.op("MatMul", g.op("Transpose", v, perm=turn), g.op("Transpose", weights, perm=turn))
            g.op("Transpose", turned, perm=turn, to_name="y")
        else:
            g.op("MatMul", weights, v, to_name="y")

    def softmax(self, scores):
        """Returns the weights: the output of a Softmax, or of the nodes that compute it."""
        g = self.g
        form = self.random.random()
        if form < 0.7:
            return g.op("Softmax", scores, axis=-1)
        less = g.op("Sub", scores, g.op("ReduceMax", scores, axes=[-1]))
        if form < 0.8:
            return g.op("Softmax", less, axis=-1)
        exponentials = g.op("Exp", less)
        return g.op("Div", exponentials, g.op("ReduceSum", exponentials, g.ints(-1)))

    def split(self, x, heads, dim):
        shape = [1, -1] if self.layout == "matrix" else [0, 0]
        return self.g.op("Transpose", self.g.op("Reshape", x, self.g.ints(*shape, heads, dim)), perm=[0, 2, 1, 3])

    def repeat(self, x, times):
        g = self.g
        wide = g.op("Expand", g.op("Unsqueeze", x, g.ints(2)), g.ints(1, 1, times, 1, 1))
        return g.op("Reshape", wide, g.ints(0, self.heads, -1, self.dim))

    def build_fused(self, m):
        g, h, c, d = self.g, self.heads, self.kv_heads, self.dim
        rows = self.layout != "Attention 23, heads"
        if rows:
            q, k, v = (self.input(x, ["b", y, z * d]) for x, y, z in (("q", "n", h), ("k", m, c), ("v", m, c)))
            self.token_axis = 1
        else:
            q, k, v = (self.input(x, ["b", z, y, d]) for x, y, z in (("q", "n", h), ("k", m, c), ("v", m, c)))
        self.n, self.m = (g.size(x, -2) for x in (q, k))
        attributes, mask, microsoft = {}, None, self.layout == "MultiHeadAttention"
        causal = self.mask == "causal, first"
        if causal:
            attributes["unidirectional" if microsoft else "is_causal"] = 1
            # MultiHeadAttention aligns to the last key if there are more keys than queries.
            if microsoft and not self.itself:
                self.expressible = False
        if self.mask == "added input":
            batch, heads = [1, "b"][int(self.random.integers(2))], [1, h][int(self.random.integers(2))]
            mask = self.input("mask", [batch, heads, "n", m])
        if self.mask == "chosen by an input":
            mask = self.input("mask", ["n", m] if self.random.random() < 0.5 else ["b", 1, "n", m], BOOL)
        if self.mask == "causal, last":
            keeps = self.causal(True)
            fill = self.fill(False)
            mask = g.op("Where", keeps, g.number(0), g.number(fill))
            if microsoft:
                mask = g.op("Unsqueeze", mask, g.ints(0, 1))
            elif self.random.random() < 0.5:
                mask = keeps
            elif fill == np.finfo(g.dtype).min and self.more_queries():
                # ONNX Runtime's Attention answers 0 for a row of the lowest number, the operator the mean of the values.
                self.expressible = False
        if self.scale == "constant":
            attributes["scale"] = 0.3
        if microsoft:
            inputs = [q, k, v] + (["", "", mask] if mask else [])
            g.nodes.append(helper.make_node(
                "MultiHeadAttention", inputs, ["y"], domain="com.microsoft", num_heads=h, **attributes))
            return
        if rows:
            attributes.update(q_num_heads=h, kv_num_heads=c)
        if not mask and self.random.random() < 0.2:
            attributes["softcap"] = 5.0
        g.nodes.append(helper.make_node("Attention", [q, k, v] + ([mask] if mask else []), ["y"], **attributes))

    # Scales.

    def product(self, q, k, turn):
        """Returns the scores: the product of queries and transposed keys, or the transposed product of keys and queries."""
        g = self.g
        if self.random.random() < 0.85:
            return g.op("MatMul", q, g.op("Transpose", k, perm=turn))
        return g.op("Transpose", g.op("MatMul", k, g.op("Transpose", q, perm=turn)), perm=turn)

    def scaled(self, q, k):
        g = self.g
        turn = list(range(self.rank - 2)) + [self.rank - 1, self.rank - 2]
        root = float(self.dim) ** -0.5
        if self.scale == "half on each side":
            half = g.number(root**0.5)
            return g.op("MatMul", g.op("Mul", q, half), g.op("Mul", g.op("Transpose", k, perm=turn), half))
        if self.scale == "of the head's shape":
            dim = g.op("Sqrt", g.float(g.size(q, self.rank - 1)))
            if self.random.random() < 0.5:
                q = g.op("Div", q, dim)
                return self.product(q, k, turn)
            return g.op("Div", self.product(q, k, turn), dim)
        if self.scale == "constant" and self.random.random() < 0.4:
            q = g.op("Mul", q, g.number(root))
            return self.product(q, k, turn)
        scores = self.product(q, k, turn)
        if self.scale == "none":
            return scores
        if self.scale == "soft cap":
            cap = g.number(4)
            return g.op("Mul", g.op("Tanh", g.op("Div", g.op("Mul", scores, g.number(root)), cap)), cap)
        scores = g.op("Mul", scores, g.number(root)) if self.random.random() < 0.5 else g.op(
            "Div", scores, g.number(1 / root))
        n = self.m if self.random.random() < 0.5 else self.n
        limit = self.limit(int(self.random.choice([4, 8, 20, 30, 100])))
        if self.scale == "log of n":
            factor = g.op("Log", g.float(g.op("Max", n, g.integer(limit))))
        elif self.scale == "step in n":
            factor = g.op("Where", g.op("Less", n, g.integer(limit)), g.number(1), g.number(3))
        elif self.scale == "clipped n":
            factor = g.op("Div", g.op("Clip", g.float(n), g.number(3), g.number(limit)), g.number(10))
        else:
            return scores
        return g.op("Mul", scores, factor)

    # Masks.

    def more_queries(self):
        """Returns whether there may be more queries than keys."""
        (n, n_fixed), (m, m_fixed) = self.axes["n"], self.axes["m"]
        return not self.itself and not (n_fixed and m_fixed and n <= m)

    def fill(self, weak=True):
        """Returns the number that replaces a masked score."""
        low = float(np.finfo(self.g.dtype).min)
        return [low, low, -np.inf, -1e4 if self.half else -1e9][int(self.random.integers(4))]

    def causal(self, last):
        """Returns the tensor `[n, m]` of whether query i attends key j."""
        g = self.g
        if last:
            last = g.op("Sub", self.m, self.n)
            return g.op("LessOrEqual", g.range(self.m), g.op("Add", g.range(self.n, True), last))
        return g.op("LessOrEqual", g.range(self.m), g.range(self.n, True))

    def masked(self, scores):
        g, mask, random = self.g, self.mask, self.random
        m = "n" if self.itself else "m"
        if self.layout == "past":
            m = None
        if m is None and mask in ("chosen by an input", "added input", "padding", "padding, causal"):
            # The keys' axis is the sum of two, which no input declares.
            self.axis("s", 0, False)
            m = "s"
        whole = {2: [], 3: ["b"], 4: ["b", 1], 5: ["b", 1, 1]}[self.rank]
        if mask == "none":
            return scores
        if mask == "added input":
            outer = whole if random.random() < 0.5 else [1] * len(whole)
            return g.op("Add", scores, self.input("mask", outer + ["n", m]))
        if mask.startswith("ALiBi"):
            i, j = g.float(g.range(self.n, True)), g.float(g.range(self.m))
            distance = g.op("Sub", j, i)
            if random.random() < 0.5:
                distance = g.op("Neg", g.op("Abs", distance))
            slopes = [2.0 ** -(x + 1) for x in range(self.heads)]
            each = self.rank >= 4 and self.layout != "free heads"
            slope = np.array(slopes, g.dtype).reshape(-1, 1, 1) if each else np.array(slopes[0], g.dtype)
            scores = g.op("Add", scores, g.op("Mul", distance, g.constant(slope)))
            return self.choose(scores, self.causal(random.random() < 0.5)) if mask == "ALiBi, causal" else scores
        if mask == "weak fill":
            return g.op("Where", self.causal(False), scores, g.number(-3))
        if mask == "chosen by an input":
            return self.choose(scores, self.input("mask", whole + ["n", m], BOOL))
        if mask.startswith("padding"):
            keeps = self.input("mask", ["b" if self.rank > 2 else 1, m], BOOL)
            if self.rank > 2:
                keeps = g.op("Unsqueeze", keeps, g.ints(*range(1, self.rank - 1)))
            if mask == "padding":
                return self.choose(scores, keeps)
            causal = self.causal(random.random() < 0.5)
            if random.random() < 0.5:
                return self.choose(scores, g.op("And", keeps, causal))
            return self.choose(self.choose(scores, causal), keeps)
        return self.choose(scores, self.pattern(mask))

    def choose(self, scores, keeps):
        """Replaces the scores of masked pairs by a fill."""
        g, way, fill = self.g, int(self.random.integers(3)), self.g.number(self.fill())
        if way == 0:
            return g.op("Where", keeps, scores, fill)
        if way == 1:
            return g.op("Where", g.op("Not", keeps), fill, scores)
        return g.op("Add", scores, g.op("Where", keeps, g.number(0), fill))

    def cut(self, buffer, last):
        """Returns the first rows and columns of a constant, or its last rows before the columns end."""
        g = self.g
        n, m = g.vector(self.n), g.vector(self.m)
        if all(self.axes.get(x, (0, False))[1] for x in "nm"):
            last = last and self.axes["n"][0] <= self.axes["m"][0]
        begin, end = (g.op("Sub", m, n), m) if last else (g.ints(0), n)
        buffer = buffer.reshape([1] * (min(self.rank, 4) - 2) + [*buffer.shape])
        rows = g.op("Slice", g.constant(buffer), begin, end, g.ints(-2))
        return g.op("Slice", rows, g.ints(0), m, g.ints(-1))

    def pattern(self, mask):
        """Returns the attended pairs `[n, m]` of a mask that depends only on the sizes."""
        g, random = self.g, self.random
        i, j = np.arange(BUFFER)[:, None], np.arange(BUFFER)
        if mask.startswith("causal"):
            return self.causal(mask == "causal, last")
        if mask.startswith("cut from tril"):
            return self.cut(j <= i, mask.endswith("last"))
        width = self.limit(int(random.choice(SHORT + LONG if random.random() < 0.3 else SHORT)))
        if mask == "cut from a window":
            return self.cut((j <= i) & (j > i - width), random.random() < 0.5)
        if mask == "open window":
            return self.cut(np.abs(i - j) < width, random.random() < 0.5)
        if mask == "prefix":
            return self.cut(np.broadcast_to(j < width, (BUFFER, BUFFER)).copy(), False)
        if mask == "Trilu of Trilu":
            shape = g.op("Concat", g.vector(self.n), g.vector(self.m), axis=0)
            ones = g.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([1], np.float32)))
            lower = g.op("Trilu", ones, upper=0)
            return g.op("Cast", g.op("Trilu", lower, g.integer(-width), upper=1), to=BOOL)
        if random.random() < 0.5:
            together = i // width == j // width
            return self.cut(together & (j <= i) if mask == "chunks" else together, False)
        size = g.integer(width)
        together = g.op("Equal", g.op("Div", g.range(self.n, True), size), g.op("Div", g.range(self.m), size))
        return g.op("And", together, self.causal(False)) if mask == "chunks" else together

    # The model and its inputs.

    def declared(self, name, dims, element):
        sizes = []
        for at, axis in enumerate(dims):
            if isinstance(axis, str) and self.axes[axis][1]:
                axis = self.axes[axis][0]
            if isinstance(axis, str) and (self.unnamed and axis not in ("h", "kb")):
                axis = None
            elif isinstance(axis, str) and axis == "s":
                axis = "past + n"
            sizes.append(axis)
        return helper.make_tensor_value_info(name, element, sizes)

    def model(self, nodes=(), more=()):
        g = self.g
        outputs = [helper.make_tensor_value_info(name, g.element, None) for name in [*self.outputs, *more]]
        inputs = [self.declared(*x) for x in self.inputs]
        graph = helper.make_graph([*g.nodes, *nodes], "random", inputs, outputs, g.constants)
        newest = self.layout.startswith("Attention 23")
        opsets = [helper.make_opsetid("", 23 if newest else 17)]
        if self.layout == "MultiHeadAttention":
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10 if newest else 8)

    def probe(self):
        """Returns the model with its scores, unless attention is one node, and its values as additional outputs."""
        scores = [self.scores] if self.scores else []
        return self.model([helper.make_node("Identity", [self.v], ["values"])], scores + ["values"])

    def worlds(self):
        """Returns the sizes of all axes, for each run."""
        random, limit = self.random, max(self.limits)
        free = {name for name, (_, fixed) in self.axes.items() if not fixed}
        at = lambda name: self.axes[name][0]
        if self.layout == "past":
            tokens = [(1, 0), (1, 7), (5, 3), (3, limit + 2), (limit + 3, 2), (7, 13)]
        elif self.itself:
            tokens = [(x, x) for x in (1, 2, 7, 13, limit, limit + 1, 2 * limit + 3)]
        else:
            tokens = [(1, 9), (7, 7), (5, 11), (11, 5), (3, limit + 2), (limit + 4, 3), (limit + 2, 2 * limit + 1)]
        if random.random() < 0.1:
            tokens[1] = (300, 300) if self.itself else (300, 293)
        all_ = []
        for turn, (n, other) in enumerate(tokens):
            n, other = min(n, BUFFER), min(other, BUFFER)
            sizes = {"b": (2, 1, 3)[turn % 3], "n": n, "h": (3, 1, 5, 2)[turn % 4]}
            sizes["p" if self.layout == "past" else "m"] = other
            sizes = {name: size if name in free else at(name) for name, size in sizes.items() if name in self.axes}
            if "kb" in free:
                sizes["kb"] = sizes["b"] if turn % 2 else 1
            if self.layout == "past":
                sizes["s"] = sizes["n"] + sizes["p"]
            elif self.itself:
                sizes["m"] = sizes["n"]
            if sizes not in all_:
                all_.append(sizes)
        return all_

    def feeds(self, sizes):
        feeds = {}
        for name, dims, element in self.inputs:
            shape = [axis if isinstance(axis, int) else sizes[axis] for axis in dims]
            if element == BOOL:
                feeds[name] = self.random.random(shape) < 0.7
                # Masks of the model must cover rows that attend nothing.
                feeds[name][..., :1] = True
            else:
                feeds[name] = self.random.standard_normal(shape).astype(self.g.dtype)
        return feeds

    def score_size(self, feeds):
        """Returns an upper bound of the scores of a fused node."""
        norm = lambda name: np.sqrt((feeds[name].astype(np.float64) ** 2).sum(axis=-1).max(initial=0))
        added = np.abs(feeds["mask"].astype(np.float64)).max(initial=0) if self.mask == "added input" else 0
        scale = 0.3 if self.scale == "constant" else self.dim**-0.5
        return norm("q") * norm("k") * scale + added


def draw(seed, number):
    return Drawn(np.random.default_rng([seed, number]))
