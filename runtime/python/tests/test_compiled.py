"""The compiled module of elsa.py over tensors of torch.

`python3 test_compiled.py` with elsa.py and _elsa on PYTHONPATH, with a torch that publishes DLPack's table, as 2.11 does.
"""

import gc
import subprocess
import sys
import unittest

import torch

import elsa

from test_torch import DEVICES, Case, tensors


@unittest.skipUnless(elsa._calls and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), "needs _elsa and torch 2.11")
class Compiled(Case):
    """Repeated calls on the host, which the compiled module makes."""

    def interpreted(self, call):
        """Returns whether the interpreter makes a call."""
        names = []
        sys.setprofile(lambda frame, event, _: event == "call" and names.append(frame.f_code.co_name))
        try:
            call()
        finally:
            sys.setprofile(None)
        return "_call" in names

    def test_repeated_calls_leave_the_interpreter(self):
        class Own(torch.Tensor):
            pass

        q, k, v = tensors((1, 2, 5, 8))
        one, own, grown = torch.nn.Parameter(q.clone(), requires_grad=False), q.as_subclass(Own), q.clone().requires_grad_()
        turned, mask = q.mT.contiguous().mT, torch.zeros(5, 5)
        for left, call in (
            (True, lambda: elsa.attention(q, k, v)), (True, lambda: elsa.attention(q, k, v, out=one)),
            (True, lambda: elsa.attention(one, k, v, lse=True)), (True, lambda: elsa.sdpa(q, k, v, mask)),
            (True, lambda: elsa.recurrence(q[0], k[0], present_state=True)), (False, lambda: elsa.sdpa(q, turned, v)),
            (False, lambda: elsa.attention(own, k, v)), (False, lambda: elsa.attention(q, k, v, key_lengths=[3])),
        ):  # fmt: skip
            call()
            self.assertEqual(self.interpreted(call), not left)
        with torch.no_grad():
            elsa.attention(grown, k, v)
            self.assertFalse(self.interpreted(lambda: elsa.attention(grown, k, v)))

    def test_sdpa_finds_each_call_by_its_arguments(self):
        q, k, v = tensors((1, 4, 5, 8))
        mask, one = torch.randn(5, 5), torch.nn.Parameter(q.clone(), requires_grad=False)
        calls = [
            ((q, k, v), {}), ((q, k, v), {"is_causal": True}), ((q, k, v), {"scale": 0.25}), ((q, k, v), {"scale": 0.0}),
            ((q, k, v, mask), {}), ((q, k, v, mask > 0), {}), ((q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
            ((k, q, v), {}), ((one, k, v), {}), ((q[..., :4], k[..., :4], v), {}), ((q.half(), k.half(), v.half()), {}),
            ((q[0], k[0], v[0]), {"dropout_p": 0.0}), ((q, k.mT.contiguous().mT, v), {}),
        ]  # fmt: skip
        function = torch.nn.functional.scaled_dot_product_attention
        want = [function(*args, **named) for args, named in calls]
        for engine in (None, elsa.Engine(threads=1)):
            with elsa.patch(engine) as patched:
                for _ in range(3):
                    before = patched._seen[0]
                    for (args, named), y in zip(calls, want):
                        out = torch.nn.functional.scaled_dot_product_attention(*args, **named)
                        torch.testing.assert_close(out, y, atol=1e-3 if y.dtype is torch.half else 1e-5, rtol=0)
                self.assertEqual(patched.calls, 3 * len(calls))
                # The last call copies a tensor, so elsa.py computes it.
                self.assertEqual(patched._seen[0] - before, len(calls) - 1)

    def test_sdpa_leaves_calls_to_elsa_py(self):
        q, k, v = tensors((2, 2, 5, 8))
        grown, imaginary = q.clone().requires_grad_(), torch.complex(q, q).conj().imag
        self.assertTrue(imaginary.is_neg())
        with elsa.patch() as patched, torch.no_grad():
            function = torch.nn.functional.scaled_dot_product_attention
            for _ in range(2):
                want = function(q, k, v)
            seen = patched._seen[0]
            with torch.enable_grad():
                self.assertRaises(elsa.UnsupportedError, function, grown, k, v)
            self.assertRaises(elsa.UnsupportedError, function, q, k, v, dropout_p=0.5)
            self.assertRaises(elsa.ArgumentError, function, q, k, v, scale="much")
            self.assertRaises(elsa.ArgumentError, function, imaginary, k, v)
            with torch.autocast("cpu", torch.bfloat16):
                self.assertIs(function(q, k, v).dtype, torch.bfloat16)
            self.assertEqual(patched._seen[0], seen)
            mapped = torch.func.vmap(function)(q, k, v)
            torch.testing.assert_close(mapped, want, atol=1e-6, rtol=0)
            seen = patched._seen[0]
            self.assertTrue(torch.equal(function(q, k, v), want))
            self.assertEqual(patched._seen[0], seen + 1)
        self.assertIsNone(elsa._calls.sdpa_key(q, k, v, None, 1))

    def test_the_operator_finds_each_call_by_its_arguments(self):
        q, k, v = tensors((1, 4, 5, 8))
        mask, operator = torch.randn(5, 5), torch.ops.elsa.sdpa
        calls = [
            (q, k, v), (q, k, v, mask), (q, k, v, None, True), (q, k, v, None, False, 0.25), (k, q, v),
            (q, k[:, :2], v[:, :2], None, False, None, True),
        ]  # fmt: skip

        def eager(q, k, v, mask=None, causal=False, scale=None, shared=False):
            return elsa.sdpa(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=shared)

        with elsa.patch() as patched:
            want = [eager(*args) for args in calls]
            for _ in range(2):
                before = patched._seen[0]
                for args, y in zip(calls, want):
                    self.assertTrue(torch.equal(operator(*args), y))
            self.assertEqual(patched._seen[0] - before, len(calls))
            self.assertEqual(patched.calls, 3 * len(calls))
            self.assertFalse(self.interpreted(lambda: operator(q, k, v)))
            # The types of an operator's tensors are those of the graph that contains it.
            with torch.autocast("cpu", torch.bfloat16):
                self.assertIs(operator(q, k, v).dtype, torch.float32)
        grown = q.clone().requires_grad_()
        self.assertRaises(elsa.UnsupportedError, operator, grown, k, v)
        self.assertRaises(RuntimeError, operator, q, k)

    def test_the_compiler_may_be_imported_before_or_in_a_block(self):
        program = """
import sys, torch, elsa
if sys.argv[1] == "before":
    import torch._dynamo
q, k, v = torch.randn(3, 1, 2, 7, 8)
function = lambda: torch.nn.functional.scaled_dot_product_attention
want = function()(q, k, v)
near = lambda y: torch.testing.assert_close(y, want, atol=1e-5, rtol=0)
torch_own = function()
with torch.no_grad(), elsa.patch() as patched:
    for _ in range(3):
        near(function()(q, k, v))
    assert patched._seen[0] == 2 and ("torch._dynamo" in sys.modules) == (sys.argv[1] == "before")
    model = torch.compile(lambda q, k, v: function()(q, k, v), fullgraph=True, backend="aot_eager")
    for _ in range(3):
        near(model(q, k, v))
    assert patched.calls == 6, patched.calls
    near(function()(q, k, v))
    assert patched.calls == 7
assert function() is torch_own and elsa._Importing not in sys.meta_path
with torch.no_grad(), elsa.patch() as patched:
    near(model(q, k, v)), near(function()(q, k, v)), near(function()(q, k, v))
    assert patched.calls == 3 and patched._seen[0] == 3
# The function that replaces torch's changes once if the compiler was imported in the first block.
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
assert graphs == (1 if sys.argv[1] == "before" else 2), graphs
"""
        for when in ("before", "within"):
            subprocess.run([sys.executable, "-c", program, when], check=True)

    def test_descriptions(self):
        x = torch.zeros(3, 4, 5)
        # The first call reads the table.
        elsa.sdpa(x, x, x)
        same = x.clone(), torch.nn.Parameter(x), x[:1].expand(3, 4, 5).contiguous()
        other = [x.half(), x.bfloat16(), x.bool(), x.int(), x[:2], x[:, :, :4], x[0], x.mT, x.mT.contiguous().mT, x.reshape(12, 5)]
        other += [x.to(device) for device in DEVICES[1:]] + [x[:0], torch.zeros(())]
        seen = {elsa._calls.describe((x,)): x}
        for y in same:
            self.assertIn(elsa._calls.describe((y,)), seen)
        for y in other:
            self.assertNotIn(elsa._calls.describe((y,)), seen)
            seen[elsa._calls.describe((y,))] = y
        self.assertNotIn(None, seen)
        for wrong in ((x.to_sparse(),), (x.to_mkldnn(),), (x, None), [x], (x, x.numpy()), (x,) * 17, ()):
            self.assertIsNone(elsa._calls.describe(wrong))

    def test_objects_are_freed(self):
        x = torch.ones(1, 1, 9, 8)
        counted = elsa._Attention, elsa._engines, torch.Tensor, torch.float32, elsa._elsa.Known, elsa._check, x
        for calls in (20, 2000):
            engine = elsa.Engine(threads=1)
            before = [sys.getrefcount(y) for y in counted]
            for _ in range(calls):
                elsa.attention(x, x, x, out=torch.empty_like(x), engine=engine)
                self.assertRaises(elsa.ArgumentError, elsa.attention, x, x, x, out=x, engine=engine)
                self.assertRaises(elsa.ArgumentError, elsa.attention, x, x.to_sparse(), x, engine=engine)
            del engine
            gc.collect()
            self.assertLess(max(abs(sys.getrefcount(y) - n) for y, n in zip(counted, before)), 20)


if __name__ == "__main__":
    unittest.main()
