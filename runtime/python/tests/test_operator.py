"""The operator elsa::sdpa, which compiled, exported and mapped models of torch contain, compared with torch in f64.

`python3 test_operator.py` with elsa.py on PYTHONPATH, with torch 2.5 or later and a C++ compiler.
"""

import unittest

import torch
import torch.nn.functional as functional

import elsa

from test_torch import TORCH, Case, exact, tensors


class Encoder(torch.nn.Module):
    """A block of an encoder; `keep` [batch, tokens] masks padding."""

    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.heads, self.norm = heads, torch.nn.LayerNorm(dim)
        self.project, self.merge, self.wide = torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim), torch.nn.Linear(dim, dim)

    def forward(self, x, keep):
        batch, tokens, dim = x.shape
        q, k, v = self.project(self.norm(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        x = x + self.merge(y.transpose(1, 2).reshape(batch, tokens, dim))
        return x + functional.gelu(self.wide(x))


class Decoder(torch.nn.Module):
    """A causal block whose key heads serve groups of query heads."""

    def __init__(self, dim=48, heads=6, shared=2):
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, dim // heads
        self.q, self.kv = torch.nn.Linear(dim, dim, bias=False), torch.nn.Linear(dim, 2 * shared * self.size, bias=False)
        self.merge = torch.nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        batch, tokens, dim = x.shape
        q = self.q(x).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, tokens, 2, self.shared, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
        return x + self.merge(y.transpose(1, 2).reshape(batch, tokens, dim))


@unittest.skipUnless(hasattr(torch.library, "register_vmap"), "needs torch 2.5")
class Operator(Case):
    """The operator that compiled, exported and mapped models contain."""

    def models(self):
        """Returns models, each with a function that makes its inputs from a batch and a number of tokens."""
        torch.manual_seed(4)

        def padded(batch, tokens):
            return torch.randn(batch, tokens, 48), torch.arange(tokens) < torch.arange(tokens, tokens - batch, -1)[:, None]

        return [(Encoder().eval(), padded), (Decoder().eval(), lambda batch, tokens: (torch.randn(batch, tokens, 48),))]

    def wanted(self, model, inputs):
        """Returns the model's answer by torch in f64."""
        double = [x.double() if x.is_floating_point() else x for x in inputs]
        answer = model.double()(*double)
        model.float()
        return answer

    def compiled(self, **options):
        """Compiles each model as one graph and compares its outputs for changing shapes."""
        for model, inputs in self.models():
            torch._dynamo.reset()
            with torch.no_grad():
                cases = [inputs(batch, tokens) for batch, tokens in ((2, 17), (3, 29), (5, 40), (2, 17))]
                wanted = [self.wanted(model, case) for case in cases]
                graph = torch.compile(model, fullgraph=True, **options)
                for later in (False, True):
                    # A later block uses the graphs of the first one.
                    with elsa.patch() as patched, torch._dynamo.config.patch(error_on_recompile=later):
                        for case, answer in zip(cases, wanted):
                            self.near(graph(*case), answer, 2e-5)
                    self.assertEqual(patched.calls, len(cases))
                # Outside of a block, torch's own function computes.
                self.near(graph(*cases[0]), wanted[0], 2e-5)
                self.assertEqual(patched.calls, len(cases))

    def test_compiled_models_are_one_graph(self):
        self.compiled(backend="aot_eager")
        self.compiled(backend="aot_eager", dynamic=True)

    def test_compiled_by_inductor(self):
        self.compiled(dynamic=True)

    def test_exported_models(self):
        for model, inputs in self.models():
            batch, tokens = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("tokens", min=4, max=512)
            case, other = inputs(3, 20), inputs(2, 33)
            with torch.no_grad():
                with elsa.patch():
                    program = torch.export.export(model, case, dynamic_shapes=[{0: batch, 1: tokens}] * len(case))
                names = [str(node.target) for node in program.graph.nodes]
                self.assertEqual(names.count("elsa.sdpa.default"), 1, names)
                for x in (case, other):
                    self.near(program.module()(*x), self.wanted(model, x), 2e-5)

    def test_shapes_and_strides_are_known_beforehand(self):
        with elsa.patch():
            pass
        operator = torch.ops.elsa.sdpa.default
        for shape, kv_shape, options in (
            ((2, 3, 19, 16), None, ()), ((7, 16), (9, 16), (None, True)), ((3, 7, 16), None, ()),
            ((2, 2, 3, 5, 16), (2, 2, 3, 6, 16), ()), ((2, 8, 5, 16), (2, 2, 6, 16), (None, False, 0.5, True)),
            ((2, 1, 5, 16), (2, 4, 6, 16), ()), ((4, 5, 16), (6, 16), ()), ((5, 1, 3, 5, 16), (2, 3, 6, 16), ()),
            ((2, 4, 5, 16), None, (torch.ones(5, 5, dtype=torch.bool),)),
        ):  # fmt: skip
            given = tensors(shape, kv_shape) + options
            found, like = operator(*given), elsa._sdpa_like(*given)
            self.assertEqual((found.shape, found.stride(), found.dtype), (like.shape, like.stride(), like.dtype))
            checks = "test_schema", "test_faketensor", "test_aot_dispatch_dynamic"
            torch.library.opcheck(operator, given, test_utils=checks)

    def test_gradients_are_refused_and_not_dropped(self):
        q, k, v = tensors((1, 2, 5, 16))
        grown = k.clone().requires_grad_()
        with elsa.patch():
            self.refused(elsa.UnsupportedError, "key: requires gradients; ", torch.ops.elsa.sdpa, q, grown, v)
            graph = torch.compile(functional.scaled_dot_product_attention, backend="aot_eager", fullgraph=True)
            with self.assertRaisesRegex(Exception, "key: requires gradients"):
                graph(q, grown, v)
            with torch.no_grad():
                self.near(torch.ops.elsa.sdpa(q, grown, v), exact(q, k, v))

    def test_autocast(self):
        q, k, v = tensors((2, 4, 9, 16))
        mask = torch.randn(9, 9)
        for dtype in (torch.bfloat16, torch.float16):
            cast = [x.to(dtype) for x in (q, k, v, mask)]
            for given in ((q, k, v, mask), (q, k.to(dtype), v, mask > -1), (q.to(dtype), k, v)):
                wanted = exact(*cast[:3], None if len(given) == 3 else cast[3] if given[3].is_floating_point() else given[3])
                torch._dynamo.reset()
                with torch.autocast("cpu", dtype), torch.no_grad(), elsa.patch():
                    function = lambda *x: functional.scaled_dot_product_attention(*x)
                    for call in (function, torch.compile(function, backend="aot_eager", fullgraph=True), elsa.sdpa):
                        found = call(*given)
                        self.assertEqual((found.dtype, TORCH(*given).dtype), (dtype, dtype))
                        self.near(found, wanted)
            with torch.autocast("cpu", dtype):
                self.refused(elsa.ArgumentError, "query: float64; ", elsa.sdpa, *[x.double() for x in (q, k, v)])
                with torch.autocast("cpu", enabled=False):
                    self.assertEqual(elsa.sdpa(q, k, v).dtype, torch.float32)

    def test_inference_mode(self):
        for model, inputs in self.models():
            torch._dynamo.reset()
            with torch.inference_mode():
                case = inputs(2, 17)
                wanted = self.wanted(model, case)
                with elsa.patch() as patched:
                    self.near(model(*case), wanted, 2e-5)
                    self.near(torch.compile(model, backend="aot_eager", fullgraph=True)(*case), wanted, 2e-5)
                self.assertEqual(patched.calls, 2)

    def test_vmap(self):
        q, k, v = tensors((3, 2, 4, 9, 16), (3, 2, 4, 13, 16))
        mask = torch.randn(3, 9, 13)
        with elsa.patch() as patched:
            function = functional.scaled_dot_product_attention
            for given, axes, options in (
                ((q, k, v), 0, {}), ((q, k[0], v[0]), (0, None, None), {}), ((q[0], k, v), (None, 0, 0), {}),
                ((q, k, v, mask), 0, {}), ((q[0], k[0], v[0], mask), (None, None, None, 0), {}),
                ((q, k, v, mask[0] > -1), (0, 0, 0, None), {}), ((q, k[:, :, :2], v[:, :, :2]), 0, {"enable_gqa": True}),
                ((q[:, 0, 0], k[:, 0, 0], v[:, 0, 0]), 0, {"is_causal": True}), ((q[:, 0], k[:, 0], v[0, 0]), (0, 0, None), {}),
                ((q.movedim(0, 2), k, v.movedim(0, -1)), (2, 0, -1), {"scale": 0.2}),
            ):  # fmt: skip
                call = lambda *x: function(*x, **options)
                found = torch.func.vmap(call, in_dims=axes)(*given)
                at = axes if isinstance(axes, tuple) else (axes,) * len(given)
                parts = [[x if n is None else x.select(n, i) for x, n in zip(given, at)] for i in range(3)]
                self.near(found, torch.stack([exact(*part, **options) for part in parts]))
            before, twice = patched.calls, torch.func.vmap(torch.func.vmap(function))
            self.near(twice(q, k, v), exact(q, k, v))
            self.assertEqual((before, patched.calls), (10, 11))


if __name__ == "__main__":
    unittest.main()
