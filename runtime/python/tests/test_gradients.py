"""Gradients of elsa.py, against sums in f64, and against those of torch if it is installed.

`python3 test_gradients.py` with elsa.py on PYTHONPATH. Python 3.6 and later.
"""

import unittest

import numpy as np

import elsa

from test_elsa import SCALAR, Case, oracle, tensors

try:
    import torch
except ImportError:
    torch = None


def differentiate(q, k, v, d_out, scale=None, softcap=0.0, added=0.0, keep=True):
    """Returns the gradients of q, k and v in f64; `added` and `keep` are broadcast to the scores."""
    q, k, v, d_out = [np.asarray(x, np.float64) for x in (q, k, v, d_out)]
    shared, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    s, slope = np.einsum("bhqd,bhkd->bhqk", q, k) * scale, 1.0
    if softcap:
        bent = np.tanh(s / softcap)
        s, slope = softcap * bent, 1 - bent * bent
    s = np.where(np.broadcast_to(keep, s.shape), s + added, -np.inf)
    most = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(most), most, 0))
    p /= np.maximum(p.sum(-1, keepdims=True), np.finfo(float).tiny)
    of_p = np.einsum("bhqd,bhkd->bhqk", d_out, v)
    ds = p * (of_p - (p * of_p).sum(-1, keepdims=True)) * slope
    sums = lambda x: x.reshape(x.shape[0], shared, group, *x.shape[2:]).sum(2)
    return scale * ds @ k, sums(scale * ds.swapaxes(2, 3) @ q), sums(p.swapaxes(2, 3) @ d_out)


def upstream(q, v, seed=9):
    return np.random.RandomState(seed).standard_normal(q.shape[:-1] + v.shape[-1:]).astype(np.float32)


class Gradients(Case):
    def test_every_option(self):
        q, k, v = tensors(2, 4, 9, 13, kv_heads=2, v_dim=12)
        d_out, random = upstream(q, v), np.random.RandomState(6)
        i, j = np.arange(9)[:, None], np.arange(13)
        # A row without keys, and keys without rows.
        mask = (random.uniform(size=(2, 1, 9, 13)) < 0.7) & (i != 3) & (j != 5)
        added, table = random.standard_normal((4, 9, 13)).astype(np.float32), random.standard_normal((35, 4)).astype(np.float32)
        index = random.randint(0, 35, (9, 13))
        for options, change in (
            ({}, {}),
            ({"scale": 0.3, "softcap": 2.0}, {"scale": 0.3, "softcap": 2.0}),
            ({"causal": True}, {"keep": j <= i}),
            ({"causal": "bottom_right", "window": (3, 0)}, {"keep": (j >= i + 1) & (j <= i + 4)}),
            ({"key_lengths": [4, 13]}, {"keep": j < np.array([4, 13])[:, None, None, None]}),
            ({"mask": mask}, {"keep": mask}),
            ({"mask": mask.astype(np.int64), "bias": added}, {"keep": mask, "added": added}),
            ({"bias_table": table, "bias_index": index}, {"added": table[index].transpose(2, 0, 1)}),
        ):
            for engine in (None, SCALAR):
                wanted = differentiate(q, k, v, d_out, **change)
                out, lse = elsa.attention(q, k, v, lse=True, engine=engine, **options)
                for _ in range(2):
                    found = elsa.gradients(q, k, v, out, d_out, lse, engine=engine, **options)
                    for x, exact in zip(found, wanted):
                        self.near(x, exact, 1e-5)
                if "mask" in options:
                    self.assertFalse(found[0][:, :, 3].any() or found[1][:, :, 5].any() or found[2][:, :, 5].any())
                state = elsa.partial(q, k, v, engine=engine, **options)
                for states in (state, state[:2]):
                    found = elsa.gradients(q, k, v, elsa.finish(state)[0], d_out, states=states, engine=engine, **options)
                    for x, exact in zip(found, wanted):
                        self.near(x, exact, 1e-5)

    def test_tasks_add_up_to_the_gradients(self):
        q, k, v = tensors(2, 4, 61, 83, kv_heads=2, v_dim=12)
        d_out, mask = upstream(q, v), np.random.RandomState(6).uniform(size=(2, 1, 61, 83)) < 0.7
        keep = mask & (np.arange(83) <= np.arange(61)[:, None] + 22)
        wanted, rules = differentiate(q, k, v, d_out, keep=keep), {"mask": mask, "causal": "bottom_right"}
        for chunks, tasks, engine in ((7, 7, None), ([3, 3], 9, SCALAR)):
            states = [elsa.task(q, k, v, chunks, n, engine=engine, **rules) for n in range(tasks)]
            whole = elsa.merge(states)
            out, lse = elsa.finish(whole)
            shares, gathered = [], []
            for n in range(tasks):
                given = {"engine": engine, "lse": lse} if n % 2 else {"engine": engine, "states": whole}
                shares.append(elsa.gradients_task(q, k, v, out, d_out, chunks, n, **given, **rules))
                queries, keys = elsa.task_tokens(chunks, n, 61, 83)
                self.assertEqual(shares[n].d_q.shape[2], len(queries))
                given = {"engine": engine, "lse": lse[:, :, queries], "totals": (61, 83), "causal": "bottom_right"}
                rows = [x[:, :, queries].copy() for x in (q, out, d_out)]
                columns = [x[:, :, keys].copy() for x in (k, v)]
                gathered.append(elsa.gradients_task(
                    rows[0], *columns, *rows[1:], chunks, n, mask=mask[:, :, queries][..., keys].copy(), **given
                ))  # fmt: skip
            for parts in (shares, gathered):
                for x, exact in zip(elsa.merge_gradients(parts, chunks, 61, 83), wanted):
                    self.near(x, exact, 1e-5)
        for message, parts in (
            ("shares: none; ", []),
            ("shares[0]: ", [shares[0][:2]]),
            ("shares[0].d_q: float64; ", [[x.astype(np.float64) for x in shares[0]]]),
            ("", shares[:-1]),
            ("", shares[:3] + shares[4:]),
            ("", [shares[0]._replace(d_k=shares[0].d_k[:, :, 1:])] + shares[1:]),
        ):
            with self.assertRaises(elsa.ArgumentError) as caught:
                elsa.merge_gradients(parts, chunks, 61, 83)
            self.assertTrue(str(caught.exception).startswith(message), str(caught.exception))

    def test_packed_sequences(self):
        q, k, v = tensors(1, 4, 20, 23, kv_heads=2)
        d_out, of_q, of_k = upstream(q, v), [0, 5, 5, 12, 20], [0, 7, 9, 9, 23]
        bounds = {"cu_seqlens_q": of_q, "cu_seqlens_k": of_k, "causal": True}
        out, lse = elsa.attention(q, k, v, lse=True, **bounds)
        found = elsa.gradients(q, k, v, out, d_out, lse, **bounds)
        for n in range(4):
            rows, keys = slice(of_q[n], of_q[n + 1]), slice(of_k[n], of_k[n + 1])
            keep = np.tri(rows.stop - rows.start, keys.stop - keys.start, dtype=bool)
            if keep.size:
                cut = q[:, :, rows], k[:, :, keys], v[:, :, keys], d_out[:, :, rows]
                wanted = differentiate(*cut, keep=keep)
                for x, exact, part in zip(found, wanted, (rows, keys, keys)):
                    self.near(x[:, :, part], exact, 1e-5)
            else:
                self.assertFalse(found[0][:, :, rows].any() or found[1][:, :, keys].any())

    def test_types_ranks_and_strides(self):
        q, k, v = tensors(2, 4, 9, 9)
        d_out = upstream(q, v)
        out, lse = elsa.attention(q, k, v, lse=True)
        wanted = elsa.gradients(q, k, v, out, d_out, lse)
        views = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v, out, d_out)]
        views += [np.ascontiguousarray(lse.T).T]
        views[4] = np.ascontiguousarray(d_out[..., ::-1])[..., ::-1]
        for x, same in zip(elsa.gradients(*views), wanted):
            self.assertEqual(x.tobytes(), same.tobytes())
        for at in ((1,), (1, 2)):
            for x, whole in zip(elsa.gradients(*[x[at] for x in (q, k, v, out, d_out, lse)]), wanted):
                self.near(x, whole[at].astype(np.float64))
        # A gradient that is the same for all elements, as that of a sum, needs no memory of its size.
        ones = np.broadcast_to(np.float32(1), out.shape)
        for x, exact in zip(elsa.gradients(q, k, v, out, ones, lse), differentiate(q, k, v, ones)):
            self.near(x, exact, 1e-5)
        half = [x.astype(np.float16) for x in (q, k, v)]
        state = elsa.partial(*half)
        exact, _ = elsa.finish(state)
        for y, dy, limit in ((exact, d_out, 1e-4), (exact.astype(np.float16), d_out.astype(np.float16), 2e-2)):
            found = elsa.gradients(*half, out=y, d_out=dy, states=state)
            for x, of_f64 in zip(found, differentiate(*half, d_out=d_out)):
                self.assertEqual(x.dtype, np.float32)
                self.near(x, of_f64, limit)

    def test_no_tokens(self):
        q, k, v = tensors()
        out, lse = elsa.attention(q[:, :, :0], k, v, lse=True)
        found = elsa.gradients(q[:, :, :0], k, v, out, out, lse)
        self.assertEqual([x.shape for x in found], [(2, 4, 0, 16), k.shape, v.shape])
        self.assertFalse(found[1].any() or found[2].any())
        out, lse = elsa.attention(q, k[:, :, :0], v[:, :, :0], lse=True)
        found = elsa.gradients(q, k[:, :, :0], v[:, :, :0], out, out, lse)
        self.assertEqual((found[0].any(), found[1].shape), (False, (2, 4, 0, 16)))

    def test_refused(self):
        q, k, v = tensors()
        d_out = upstream(q, v)
        out, lse = elsa.attention(q, k, v, lse=True)
        state = elsa.partial(q, k, v)
        given = {"out": out, "d_out": d_out, "lse": lse}
        for message, options in (
            ("lse: None, as is states; ", {"lse": None}),
            ("lse: given with states; ", {"states": state}),
            ("states: 3; ", {"lse": None, "states": 3}),
            ("state_m: float64; ", {"lse": None, "states": (state.m.astype(float), state.s)}),
            ("state_m, state_s, lse: one of the states is null; ", {"lse": None, "states": (state.m, None)}),
            ("lse: [2, 4, 8]; ", {"lse": lse[:, :, :8]}),
            ("d_out: [2, 4, 8, 16]; ", {"d_out": d_out[:, :, :8]}),
            ("d_out: float64; ", {"d_out": d_out.astype(float)}),
            ("d_out: float16; ", {"d_out": d_out.astype(np.float16)}),
            ("out: another type than q; ", {"out": out.astype(np.float16)}),
            ("out: NoneType; ", {"out": None}),
            ("key_lengths: given with cu_seqlens_q; ", {"cu_seqlens_q": [0, 9], "key_lengths": [9]}),
            ("causal: 'left'; ", {"causal": "left"}),
        ):
            self.refused(elsa.ArgumentError, message, q, k, v, function=elsa.gradients, **dict(given, **options))


@unittest.skipUnless(torch, "needs torch")
class Torch(Case):
    """The same functions with tensors of torch."""

    def test_gradients_are_those_of_autograd(self):
        q, k, v = tensors(2, 4, 9, 13)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            given = [torch.from_numpy(x).to(dtype) for x in (q, k, v, upstream(q, v))]
            wide = [x.double().requires_grad_() for x in given[:3]]
            torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True).backward(given[3].double())
            state = elsa.partial(*given[:3], causal=True)
            found = elsa.gradients(*given[:3], out=elsa.finish(state)[0], d_out=given[3], states=state, causal=True)
            for x, exact in zip(found, wide):
                self.assertEqual(x.dtype, torch.float32)
                self.near(x.numpy(), exact.grad.numpy(), 1e-4)
            self.refused(
                elsa.UnsupportedError, "q: requires gradients; ", given[0].clone().requires_grad_(), *given[1:3],
                out=given[3], d_out=given[3], states=state, function=elsa.gradients,
            )  # fmt: skip

    def test_tasks_budgets_and_certificates(self):
        arrays = tensors(1, 2, 40, 40)
        q, k, v = [torch.from_numpy(x) for x in arrays]
        parts = [elsa.task(q, k, v, 7, n) for n in range(7)]
        self.near(elsa.finish(elsa.merge(parts))[0].numpy(), oracle(*arrays)[0])
        out, left = elsa.attention(q, k, v, error_budget=0.1)
        self.assertEqual((left.share.dtype, tuple(left.share.shape), left.rows), (torch.float32, (1, 2, 40), 80))
        out, certificate = elsa.linear_attention(q, k, v, certify=True)
        self.assertTrue(certificate.claims and len(certificate.channels) == 16)


if __name__ == "__main__":
    unittest.main()
