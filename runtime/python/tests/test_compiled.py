"""The compiled module of elsa.py over tensors of torch.

`python3 test_compiled.py` with elsa.py and _elsa on PYTHONPATH, with a torch that publishes DLPack's table, as 2.11 does.
"""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest
import weakref

import torch

import elsa

from test_torch import DEVICES, LIMITS, TORCH, Case, exact, tensors


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
                    before = patched._block.calls
                    for (args, named), y in zip(calls, want):
                        out = torch.nn.functional.scaled_dot_product_attention(*args, **named)
                        torch.testing.assert_close(out, y, atol=1e-3 if y.dtype is torch.half else 1e-5, rtol=0)
                self.assertEqual(patched.calls, 3 * len(calls))
                # The last call copies a tensor, so elsa.py computes it.
                self.assertEqual(patched._block.calls - before, len(calls) - 1)

    def test_sdpa_leaves_calls_to_elsa_py(self):
        q, k, v = tensors((2, 2, 5, 8))
        grown, imaginary = q.clone().requires_grad_(), torch.complex(q, q).conj().imag
        self.assertTrue(imaginary.is_neg())
        with elsa.patch() as patched, torch.no_grad():
            function = torch.nn.functional.scaled_dot_product_attention
            for _ in range(2):
                want = function(q, k, v)
            seen = patched._block.calls
            with torch.enable_grad():
                self.assertRaises(elsa.UnsupportedError, function, grown, k, v)
            self.assertRaises(elsa.UnsupportedError, function, q, k, v, dropout_p=0.5)
            self.assertRaises(elsa.ArgumentError, function, q, k, v, scale="much")
            self.assertRaises(elsa.ArgumentError, function, imaginary, k, v)
            with torch.autocast("cpu", torch.bfloat16):
                self.assertIs(function(q, k, v).dtype, torch.bfloat16)
            self.assertEqual(patched._block.calls, seen)
            mapped = torch.func.vmap(function)(q, k, v)
            torch.testing.assert_close(mapped, want, atol=1e-6, rtol=0)
            seen = patched._block.calls
            self.assertTrue(torch.equal(function(q, k, v), want))
            self.assertEqual(patched._block.calls, seen + 1)
        self.assertIsNone(elsa._calls.sdpa_key(q, k, v, None, 1))

    def test_arguments_by_position_and_by_name(self):
        q, k, v = tensors((1, 4, 5, 8))
        mask = torch.randn(5, 5)
        # Names that are not those of a program's text are other objects.
        made = {"".join(["que", "ry"]): q, "".join(["sca", "le"]): 0.5}
        right = [
            ((q, k, v, mask, 0.0, False), {"scale": 0.5}), ((q, k), {"scale": 0.5, "attn_mask": mask, "value": v}),
            ((), {"enable_gqa": False, "value": v, "attn_mask": mask, "key": k, **made}), ((q, k, v, mask, 0), {"scale": 0.5}),
        ]  # fmt: skip
        wrong = [
            ((), {}), ((q, k), {}), ((q,), {"value": v}), ((q, k, v), {"query": q}), ((q, k, v), {"mask": mask}),
            ((q, k, v, None, 0.0, False, 0.5), {}), ((q, k, v), {"Scale": 0.5}), ((), {"key": k, "value": v}),
        ]  # fmt: skip
        with elsa.patch() as patched:
            function = torch.nn.functional.scaled_dot_product_attention
            want = function(*right[0][0], **right[0][1])
            torch.testing.assert_close(want, TORCH(q, k, v, mask, scale=0.5), atol=1e-5, rtol=0)
            for arguments, named in right:
                before = patched._block.calls
                self.assertTrue(torch.equal(function(*arguments, **named), want))
                self.assertEqual(patched._block.calls, before + 1)
            for arguments, named in wrong:
                messages = []
                for call in (function, elsa.sdpa):
                    with self.assertRaises(TypeError) as caught:
                        call(*arguments, **named)
                    messages.append(str(caught.exception))
                self.assertEqual(*messages)
            self.assertEqual(patched.calls, 1 + len(right))
        operator = elsa._calls.operate
        self.assertTrue(torch.equal(operator(q, k, v, mask, False, 0.5), want))
        for arguments in ((), (q, k), (q, k, v, None, False, None, False, None)):
            self.assertRaises(TypeError, operator, *arguments)

    def test_calls_of_several_engines_and_threads(self):
        """Each thread has its own prepared calls of an engine, also when an engine takes the place of one that has ended."""
        cases = [tensors((1, 2, n, 8)) for n in (5, 7)] + [[x.reshape((1,) * 8 + x.shape) for x in tensors((1, 2, 5, 8))]]
        want = [TORCH(*case) for case in cases]
        function, faults = elsa._calls.sdpa, []

        def work(engines):
            for engine in engines:
                with elsa.patch(engine) as patched:
                    for _ in range(3):
                        for case, y in zip(cases, want):
                            faults.extend([engine] * (not torch.allclose(function(*case), y, atol=1e-5)))
                # A key has no room for three tensors of 12 axes.
                if patched._block.calls != 4 or patched.calls != 9:
                    faults.append((patched._block.calls, patched.calls))

        kept, ended = [elsa.Engine(threads=1) for _ in range(2)], []
        for _ in range(3):
            thread = threading.Thread(target=work, args=((elsa.Engine(threads=1) for _ in range(5)),))
            thread.start()
            thread.join()
            work(elsa.Engine(threads=1) for _ in range(5))
            engine = elsa.Engine(threads=1)
            work([engine])
            ended += [weakref.ref(x) for x in (engine, *engine._local.prepared.values())]
            del engine
        gc.collect()
        self.assertEqual((faults, [x() for x in ended if x() is not None]), ([], []))
        work(kept), faults.clear()
        for engine in kept * 2:
            with elsa.patch(engine) as patched:
                function(*cases[0])
            self.assertEqual((patched._block.calls, patched.calls), (1, 1))

    def test_a_call_that_failed_is_prepared_again(self):
        q, k, v = tensors((1, 2, 5, 8))
        engine = elsa.Engine(threads=1)
        with elsa.patch(engine) as patched:
            function = torch.nn.functional.scaled_dot_product_attention
            want = [function(q, k, v) for _ in range(3)][2]
            prepared, = engine._local.prepared.values()
            # As after an exception in elsa.py, or while elsa.py computes.
            prepared.busy = True
            for calls in (2, 3, 4):
                self.assertTrue(torch.equal(function(q, k, v), want))
                self.assertEqual(patched._block.calls, calls)
            other, = engine._local.prepared.values()
            self.assertIsNot(other, prepared)
            # As when another workspace replaces that of the call.
            other.known = None
            for calls in (4, 5):
                self.assertTrue(torch.equal(function(q, k, v), want))
                self.assertEqual(patched._block.calls, calls)

    def test_autocast_of_any_device_is_left_to_elsa_py(self):
        q, k, v = tensors((1, 4, 5, 8))
        with elsa.patch() as patched:
            function = torch.nn.functional.scaled_dot_product_attention
            want = [function(q, k, v) for _ in range(2)][1]
            seen = patched._block.calls
            for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
                torch.set_autocast_enabled(device, True)
                try:
                    self.assertIs(function(q, k, v).dtype, dtype)
                finally:
                    torch.set_autocast_enabled(device, False)
            self.assertEqual((patched._block.calls, patched.calls), (seen, seen + 3))
            self.assertTrue(torch.equal(function(q, k, v), want))
            self.assertEqual(patched._block.calls, seen + 1)

    def test_outputs_are_those_of_a_first_call(self):
        """In every mode and of every type, an output of a repeated call has the properties of torch's own tensors."""
        names = "dtype device layout requires_grad grad_fn names __class__"
        modes = (torch.enable_grad, torch.no_grad, torch.inference_mode)
        for device in DEVICES:
            for mode, dtype in [(mode, dtype) for mode in modes for dtype in LIMITS]:
                with mode():
                    given = tensors((2, 4, 5, 16), dtype=dtype, device=device)
                    for shape in ((2, 4, 5, 16), (4, 5, 16), (5, 16)):
                        q, k, v = [x[(0,) * (4 - len(shape))] for x in given]
                        for call in (lambda: (elsa.sdpa(q, k, v),), lambda: elsa.attention(*given, lse=True)):
                            first, again, last = [call() for _ in range(3)]
                            for x, y, z in zip(first, again, last):
                                self.assertTrue(torch.equal(x, y) and torch.equal(x, z))
                                self.assertNotEqual(y.data_ptr(), z.data_ptr())
                                for found in (y, z):
                                    for name in names.split():
                                        self.assertEqual(getattr(found, name), getattr(x, name), name)
                                    for of in ("stride", "storage_offset", "is_inference", "is_contiguous", "is_neg"):
                                        self.assertEqual(getattr(found, of)(), getattr(x, of)(), of)
                                    self.assertEqual(found.untyped_storage().nbytes(), x.untyped_storage().nbytes())

    def test_an_output_that_cannot_be_made_is_left_to_elsa_py(self):
        q, k, v = tensors((1, 2, 5, 8))
        want, layouts = elsa.attention(q, k, v), elsa._Torch.layouts
        self.assertEqual(len(layouts([elsa._Torch.maker(elsa._Torch.descriptions((q,))[0], None, (5, 8), None)])), 8 * 8)
        # The outputs have 2^60 elements, or are on a device without memory.
        for words in ([6, 0, 0, 1, 1 << 60, 1], [6, 14, 0, 1, 8, 1]):
            engine, errors = elsa.Engine(threads=1), os.dup(2)
            elsa._Torch.layouts = lambda makers: bytes((ctypes.c_int64 * len(words))(*words))
            # Torch writes what failed to the standard error.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 2)
            try:
                for _ in range(3):
                    self.assertTrue(torch.equal(elsa.attention(q, k, v, engine=engine), want))
                self.assertTrue(self.interpreted(lambda: elsa.attention(q, k, v, engine=engine)))
            finally:
                elsa._Torch.layouts = layouts
                os.dup2(errors, 2)
                os.close(errors)

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
                before = patched._block.calls
                for args, y in zip(calls, want):
                    self.assertTrue(torch.equal(operator(*args), y))
            self.assertEqual(patched._block.calls - before, len(calls))
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
    assert patched._block.calls == 2 and ("torch._dynamo" in sys.modules) == (sys.argv[1] == "before")
    model = torch.compile(lambda q, k, v: function()(q, k, v), fullgraph=True, backend="aot_eager")
    for _ in range(3):
        near(model(q, k, v))
    assert patched.calls == 6, patched.calls
    near(function()(q, k, v))
    assert patched.calls == 7
assert function() is torch_own and elsa._Importing not in sys.meta_path
with torch.no_grad(), elsa.patch() as patched:
    near(model(q, k, v)), near(function()(q, k, v)), near(function()(q, k, v))
    assert patched.calls == 3 and patched._block.calls == 3
# The function that replaces torch's changes once if the compiler was imported in the first block.
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
assert graphs == (1 if sys.argv[1] == "before" else 2), graphs
"""
        for when in ("before", "within"):
            subprocess.run([sys.executable, "-c", program, when], check=True)

    def test_a_torch_without_its_functions_of_c(self):
        program = """
import torch, elsa
elsa._MAKERS = ("absent",) * 4
q, k, v = torch.randn(3, 1, 2, 7, 8)
with torch.inference_mode(), elsa.patch() as patched:
    found = [torch.nn.functional.scaled_dot_product_attention(q, k, v) for _ in range(3)]
assert patched._block.calls == 2 and elsa._Torch.layouts([None]) == b""
assert all(torch.equal(y, found[0]) and y.stride() == found[0].stride() for y in found)
"""
        subprocess.run([sys.executable, "-c", program], check=True)

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


@unittest.skipIf(elsa._calls is None, "needs _elsa")
class Threads(Case):
    def test_a_patch_without_an_engine(self):
        """A patch without an engine computes on the threads of torch's loops, and starts none."""
        given, before, loaded = tensors((2, 8, 700, 64)), torch.get_num_threads(), elsa._loaded
        running = lambda: len(os.listdir("/proc/self/task"))
        try:
            for threads in (3, 1):
                torch.set_num_threads(threads)
                torch.add(*tensors((8, 700, 64))[:2])
                team = running()
                with elsa.patch() as patched:
                    self.near(torch.nn.functional.scaled_dot_product_attention(*given), exact(*given))
                engine = patched._block.engine
                self.assertEqual((patched.calls, engine.host, engine.threads), (1, "openmp", threads))
                # A loop of fewer threads lets OpenMP end the others at any time.
                self.assertLessEqual(running(), team)
            # The shared engine computes if there is no OpenMP library.
            elsa._loaded = lambda: []
            elsa._on_threads.clear()
            with elsa.patch() as patched:
                self.near(torch.nn.functional.scaled_dot_product_attention(*given), exact(*given))
            self.assertEqual((patched.calls, patched._block.engine), (1, None))
        finally:
            elsa._loaded = loaded
            elsa._on_threads.clear()
            torch.set_num_threads(before)


if __name__ == "__main__":
    unittest.main()
