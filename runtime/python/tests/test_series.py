"""recurrence, selective and conv of elsa.py with arrays of numpy, against their definitions in f64.

`python3 test_series.py` with elsa.py on PYTHONPATH. Python 3.6 and later.
"""

import unittest

import numpy as np

import elsa


def scan(u, delta, a, b, c, d, z, bias, past, reverse):
    """Returns output and last states of a selective scan with softplus in f64, [batch, tokens, channels]."""
    u, delta, a, b, c, z = [np.asarray(x, np.float64) for x in (u, delta, a, b, c, z)]
    steps, state, out = np.logaddexp(0, delta + bias), past.astype(np.float64), np.zeros(u.shape)
    groups = u.shape[2] // b.shape[2]
    b, c = np.repeat(b, groups, 2), np.repeat(c, groups, 2)
    for t in range(u.shape[1])[:: -1 if reverse else 1]:
        step = steps[:, t, :, None]
        state = np.exp(step * a) * state + step * b[:, t] * u[:, t, :, None]
        out[:, t] = (c[:, t] * state).sum(-1) + d * u[:, t]
    return out * z / (1 + np.exp(-z)), state


class Series(unittest.TestCase):
    def near(self, found, wanted, limit):
        self.assertEqual(found.shape, wanted.shape)
        worst = np.abs(found.astype(np.float64) - wanted).max()
        self.assertFalse(not worst <= limit * max(1.0, np.abs(wanted).max()), worst)

    def refused(self, kind, message, *arguments, **options):
        function = options.pop("function")
        with self.assertRaises(kind) as caught:
            function(*arguments, **options)
        self.assertTrue(str(caught.exception).startswith(message), str(caught.exception))
        self.assertIn("; allowed: ", str(caught.exception))

    def given(self, *shape, seed=1):
        return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)

    def test_recurrence(self):
        log, b, past = -np.abs(self.given(2, 70, 6)), self.given(2, 70, 6, seed=2), self.given(2, 6, seed=3)
        for reverse in (False, True):
            wanted, state = np.zeros(b.shape), past.astype(np.float64)
            for t in range(70)[:: -1 if reverse else 1]:
                wanted[:, t] = state = np.exp(log[:, t].astype(np.float64)) * state + b[:, t]
            for parts in (0, 3):
                options = {"past_state": past, "present_state": True, "reverse": reverse, "parts": parts}
                out, last = elsa.recurrence(log, b, log=True, **options)
                self.near(out, wanted, 1e-5)
                self.near(last, state, 1e-5)
            turned = elsa.recurrence(*[x.swapaxes(1, 2).copy() for x in (log, b)], log=True, past_state=past,
                                     reverse=reverse, layout="bct")  # fmt: skip
            self.near(turned.swapaxes(1, 2), wanted, 1e-5)
        # Tokens one at a time with their state in place; without a batch; arbitrary strides; half types.
        whole, state = elsa.recurrence(np.exp(log), b, past_state=past), past.copy()
        for t in range(70):
            step, same = elsa.recurrence(
                np.exp(log[:, t : t + 1]), b[:, t : t + 1], past_state=state, present_state=state
            )
            self.assertIs(same, state)
            self.assertEqual(step.tobytes(), whole[:, t : t + 1].tobytes())
        self.near(elsa.recurrence(np.exp(log[0]), b[0], past_state=past[:1]), whole[0].astype(np.float64), 1e-6)
        wide = np.repeat(b, 2, 2)[..., ::2]
        self.assertEqual(elsa.recurrence(np.exp(log), wide, past_state=past).tobytes(), whole.tobytes())
        half = elsa.recurrence(np.exp(log), b.astype(np.float16), past_state=past)
        self.assertEqual(half.dtype, np.float16)
        self.near(half.astype(np.float32), whole.astype(np.float64), 2e-2)
        self.assertEqual(elsa.recurrence(log[:, :0], b[:, :0], log=True, past_state=past, present_state=True)[1].tobytes(),
                         past.tobytes())  # fmt: skip

    def test_selective(self):
        u, delta, z = [self.given(2, 40, 6, seed=seed) for seed in (1, 2, 3)]
        a, d, bias, past = -np.abs(self.given(6, 5)), self.given(6), self.given(6, seed=4), self.given(2, 6, 5, seed=5)
        for groups in (1, 3):
            b, c = [self.given(2, 40, groups, 5, seed=seed) for seed in (6, 7)]
            for reverse in (False, True):
                wanted = scan(u, delta, a, b, c, d, z, bias, past, reverse)
                options = {"d": d, "delta_bias": bias, "softplus": True, "past_state": past, "reverse": reverse}
                shared = [x if groups > 1 else x[:, :, 0] for x in (b, c)]
                out, last = elsa.selective(u, delta, a, *shared, z=z, present_state=True, **options)
                self.near(out, wanted[0], 1e-5)
                self.near(last, wanted[1], 1e-5)
                first, second, third, *rest = [np.moveaxis(x, 1, -1).copy() for x in (u, delta, z, b, c)]
                turned = elsa.selective(first, second, a, *rest, z=third, layout="bct", **options)
                self.near(turned.swapaxes(1, 2), wanted[0], 1e-5)
        # Coefficients per channel act like equal coefficients of every token.
        fixed = self.given(5, seed=8)
        every = np.broadcast_to(fixed, (2, 40, 5)).copy()
        same = elsa.selective(u, delta, a, np.tile(fixed, (6, 1)), c[:, :, 0], softplus=True)
        self.assertEqual(same.tobytes(), elsa.selective(u, delta, a, every, c[:, :, 0], softplus=True).tobytes())

    def test_conv(self):
        u, filter, bias, past = self.given(2, 50, 6), self.given(6, 4), self.given(6), self.given(2, 6, 3)
        before = np.concatenate([past.swapaxes(1, 2), u], 1).astype(np.float64)
        sums = bias + sum(filter[:, k] * before[:, k : k + 50] for k in range(4))
        options = {"order": "newest_last", "past_state": past}
        for method in (None, "direct", "fft"):
            for weights in (filter, filter[:, None]):
                out, last = elsa.conv(u, weights, bias, present_state=True, method=method, **options)
                self.near(out, sums, 1e-5)
                self.assertEqual(last.tobytes(), np.ascontiguousarray(u[:, -3:].swapaxes(1, 2)).tobytes())
        both = [elsa.conv(u, filter, bias, method=method, **options).tobytes() for method in ("direct", "fft")]
        self.assertNotEqual(*both)
        self.near(elsa.conv(u, filter, bias, silu=True, **options), sums / (1 + np.exp(-sums)), 1e-5)
        self.near(elsa.conv(u, filter[:, ::-1], bias, past_state=past), sums, 1e-5)
        turned = elsa.conv(u.swapaxes(1, 2).copy(), filter, bias, layout="bct", **options)
        self.near(turned.swapaxes(1, 2), sums, 1e-5)
        # The example of the article.
        ramp = np.arange(1, 5, dtype=np.float32)[:, None]
        found = elsa.conv(ramp, np.array([1, 0.5, 0.25, 0.125], np.float32))
        self.assertEqual(found[:, 0].tolist(), [1, 2.5, 4.25, 6.125])

    def test_arguments(self):
        u, a, past = self.given(2, 9, 6), -np.abs(self.given(6, 5)), self.given(2, 6)
        bad, b, filter = elsa.ArgumentError, self.given(2, 9, 5), self.given(6, 4)
        for message, function, arguments, options in (
            ("a: ", elsa.recurrence, (u[:, :8], u), {}),
            ("a: float64; ", elsa.recurrence, (u.astype(float), u), {}),
            ("b: list; ", elsa.recurrence, (u, [1.0]), {}),
            ("b: 1 axes; ", elsa.recurrence, (u, u[0, 0]), {}),
            ("a: strides", elsa.recurrence, (u[:, ::-1], u), {}),
            ("layout: 'tbc'; ", elsa.recurrence, (u, u), {"layout": "tbc"}),
            ("parts: 2000; ", elsa.recurrence, (u, u), {"parts": 2000}),
            ("past_state: [2, 5]; ", elsa.recurrence, (u, u), {"past_state": past[:, :5]}),
            ("past_state: float16; ", elsa.recurrence, (u, u), {"past_state": past.astype(np.float16)}),
            ("present_state: float32 [2, 3]; ", elsa.recurrence, (u, u), {"present_state": past[:, ::2]}),
            ("present_state: float32 [2, 6]; ", elsa.recurrence, (u, u), {"present_state": np.repeat(past, 2, 1)[:, ::2]}),
            ("out: another type than b; ", elsa.recurrence, (u, u), {"out": u.astype(np.float16)}),
            ("gate_dtype: 1; ", elsa.recurrence, (u.astype(np.float16), u), {}),
            ("delta: tokens 8; ", elsa.selective, (u, u[:, :8], a, b, b), {}),
            ("a: ", elsa.selective, (u, u, a[0], b, b), {}),
            ("a: [5, 5]; ", elsa.selective, (u, u, a[:5], b, b), {}),
            ("b: channels 4; ", elsa.selective, (u, u, a, b[..., :4], b), {}),
            ("c: another type than u; ", elsa.selective, (u, u, a, b, b.astype(np.float16)), {}),
            ("d: [5]; ", elsa.selective, (u, u, a, b, b), {"d": a[0]}),
            ("filter: [5, 4]; ", elsa.conv, (u, filter[:5]), {}),
            ("filter: [6, 0]; ", elsa.conv, (u, filter[:, :0]), {}),
            ("order: 'oldest'; ", elsa.conv, (u, filter), {"order": "oldest"}),
            ("method: 'slow'; ", elsa.conv, (u, filter), {"method": "slow"}),
            ("bias: [5]; ", elsa.conv, (u, filter), {"bias": a[0]}),
        ):
            self.refused(bad, message, *arguments, function=function, **options)
        fixed = past.copy()
        fixed.flags.writeable = False
        self.refused(bad, "present_state: read-only", u, u, function=elsa.recurrence, present_state=fixed)


if __name__ == "__main__":
    unittest.main()
