"""The compiled module of elsa.py over tensors of torch.

`python3 test_compiled.py` with elsa.py and _elsa on PYTHONPATH, with a torch that publishes DLPack's table, as 2.11 does.
"""

import gc
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
