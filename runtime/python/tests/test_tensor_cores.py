"""The use of Tensor Cores by elsa.py, on the CPU and on the CUDA device of test_device.py.

`python3 test_tensor_cores.py` with elsa.py on PYTHONPATH and a driver. Python 3.6 and later.
"""

import os
import unittest

import numpy as np

import elsa

from test_device import Tensor, setUpModule  # noqa: F401, unittest calls setUpModule
from test_elsa import SCALAR, Case, tensors


class TensorCores(Case):
    def test_a_cpu_ignores_them(self):
        q, k, v = tensors()
        plain = elsa.attention(q, k, v, engine=SCALAR)
        for use in (False, True, None, "off", "allow", "always", "f16"):
            for _ in range(2):
                self.assertEqual(elsa.attention(q, k, v, tensor_cores=use, engine=SCALAR).tobytes(), plain.tobytes())
            found = elsa.attention(q, k, v, tensor_cores=use, certify=True, engine=SCALAR)[1]
            self.assertIsNone(found.refused_blocks)
        for use in ("on", 2, 1.5, ["allow"], b"allow"):
            message = f"tensor_cores: {use!r}; allowed: 'off', 'allow', 'always', 'f16'"
            self.refused(elsa.ArgumentError, message, q, k, v, tensor_cores=use)
            with self.assertRaises(elsa.ArgumentError):
                elsa.patch(tensor_cores=use)

    def test_a_gpu_reports_what_it_refuses(self):
        """A GPU without Tensor Cores computes f32 products; a GPU with them also reports the blocks that it refuses."""
        random = np.random.RandomState(7)
        q, k, v = random.standard_normal((3, 1, 2, 70, 64)).astype(np.float32)
        v[0, 0, :, 5] *= np.float32(1e-9)
        engine = elsa.Engine("cuda")
        scores = q.astype(np.float64) @ k.swapaxes(2, 3) / 8
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = weights @ v.astype(np.float64) / weights.sum(-1, keepdims=True)
        for use in (False, "always", "f16", False):
            device = elsa.attention(*(Tensor(x) for x in (q, k, v)), tensor_cores=use).numpy()
            host, found = elsa.attention(q, k, v, tensor_cores=use, certify=True, engine=engine)
            # A patch passes its use on to the kernel of the operator, which compiled models call and which writes [batch,
            # tokens, heads, dim].
            elsa._use(elsa.patch(tensor_cores=use)._block)
            try:
                patched = elsa._sdpa(*(Tensor(x) for x in (q, k, v))).numpy()
            finally:
                elsa._use(elsa._outside)
            for out in (device, host, patched.reshape(1, 70, 2, 64).swapaxes(1, 2)):
                self.assertTrue(np.array_equal(out, host))
                self.assertTrue((np.abs(out - wanted).max((0, 1, 2)) <= found.channels).all())
            on = "__sm80" in found.kernel
            self.assertLessEqual(on, use is not False)
            self.assertEqual(on and use == "f16", "__sm80_f16" in found.kernel)
            if on:
                self.assertEqual(2 * found.refused_blocks[0], found.refused_blocks[1])
            else:
                self.assertIsNone(found.refused_blocks)
        self.assertEqual(on, False)
        if os.environ.get("ELSA_STANDIN_DEVICE") == "tensor":
            self.assertTrue(elsa.attention(q, k, v, tensor_cores="always", certify=True, engine=engine)[1].refused_blocks)


if __name__ == "__main__":
    unittest.main()
