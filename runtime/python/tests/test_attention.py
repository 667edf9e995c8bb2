"""Options of elsa.attention that few calls have, states, tasks, certificates and streams, against an oracle in f64.

`python3 test_attention.py` with elsa.py on PYTHONPATH. Python 3.6 and later.
"""

import os
import re
import signal
import tempfile
import threading
import unittest

import numpy as np

import elsa

from test_elsa import SCALAR, Case, oracle, recurrence, tensors

NONE = float("-inf")


class Packed(Case):
    def given(self):
        q, k, v = tensors(1, 4, 20, 23, kv_heads=2, v_dim=12)
        return q, k, v, [0, 5, 5, 12, 20], [0, 7, 9, 9, 23]

    def test_each_sequence_is_alone(self):
        q, k, v, of_q, of_k = self.given()
        for options in ({}, {"causal": True}, {"causal": "bottom_right"}, {"window": (2, 1)}, {"scale": 0.3, "softcap": 2}):
            for dtype, limit in ((np.float32, 4e-6), (np.float16, 2e-3)):
                x = [y.astype(dtype) for y in (q, k, v)]
                out, lse = elsa.attention(*x, cu_seqlens_q=of_q, cu_seqlens_k=np.array(of_k), lse=True, **options)
                for n in range(4):
                    rows, keys = slice(of_q[n], of_q[n + 1]), slice(of_k[n], of_k[n + 1])
                    i, j = np.arange(of_q[n + 1] - of_q[n])[:, None], np.arange(of_k[n + 1] - of_k[n])
                    keep = {
                        True: j <= i, "bottom_right": j <= i + len(j) - len(i), None: (j >= i - 2) & (j <= i + 1),
                    }.get(options.get("causal", None if "window" in options else 0), True)  # fmt: skip
                    numbers = {name: y for name, y in options.items() if name in ("scale", "softcap")}
                    wanted = oracle(x[0][:, :, rows], x[1][:, :, keys], x[2][:, :, keys], keep=keep, **numbers)
                    self.near(out[:, :, rows], wanted[0], limit)
                    self.near(lse[:, :, rows], wanted[1])

    def test_other_bounds_of_the_same_shapes(self):
        q, k, v, of_q, of_k = self.given()
        k, v = k[:, :, :20], v[:, :, :20]
        room = np.full((1, 4, 20, 12), 7, np.float32)
        for bounds in ([0, 20], [0, 3, 20], [0, 11, 20], [0, 0, 20], [0, 3, 20]):
            found = elsa.attention(q, k, v, cu_seqlens_q=bounds, out=room)
            self.assertIs(found, room)
            for start, end in zip(bounds, bounds[1:]):
                cut = [x[:, :, start:end] for x in (q, k, v)]
                self.near(found[:, :, start:end], oracle(*cut)[0])
        heads = elsa.attention(q[0], k[0], v[0], cu_seqlens_q=[0, 3, 20])
        self.assertEqual(heads.tobytes(), room.tobytes())

    def test_refused(self):
        q, k, v, of_q, of_k = self.given()
        for message, options in (
            ("cu_seqlens_k: given without cu_seqlens_q; ", {"cu_seqlens_k": of_k}),
            ("key_lengths: given with cu_seqlens_q; ", {"cu_seqlens_q": of_q, "key_lengths": [3]}),
            ("cu_seqlens_q: 3; ", {"cu_seqlens_q": 3}),
            ("cu_seqlens_q[1]: -1; ", {"cu_seqlens_q": [0, -1, 20], "cu_seqlens_k": of_k}),
            ("cu_seqlens_q", {"cu_seqlens_q": [0, 21], "cu_seqlens_k": [0, 23]}),
            ("cu_seqlens_k", {"cu_seqlens_q": of_q, "cu_seqlens_k": of_k[:3]}),
            ("cu_seqlens_k", {"cu_seqlens_q": [0, 20]}),
            ("mask", {"cu_seqlens_q": of_q, "cu_seqlens_k": of_k, "mask": np.ones((20, 23), bool)}),
        ):
            self.refused(elsa.ArgumentError, message, q, k, v, **options)
        q, k, v = tensors(2)
        self.refused(elsa.ArgumentError, "q: batch 2; ", q, k, v, cu_seqlens_q=[0, 9], cu_seqlens_k=[0, 13])


class Cache(Case):
    def test_a_past_comes_first(self):
        q, k, v = tensors(2, 4, 5, 19, kv_heads=2, v_dim=12)
        past, new = (k[:, :, :14], v[:, :, :14]), (k[:, :, 14:], v[:, :, 14:])
        i, j = np.arange(5)[:, None], np.arange(19)
        for options, keep in (
            ({}, True),
            ({"causal": True}, j <= i + 14),
            ({"window": (3, 0)}, (j >= i + 11) & (j <= i + 14)),
            ({"key_lengths": [4, 17]}, j < np.array([4, 17])[:, None, None, None]),
            ({"mask": (j + i) % 3 > 0}, (j + i) % 3 > 0),
        ):
            for dtype, limit in ((np.float32, 4e-6), (np.float16, 2e-3)):
                x, cut = q.astype(dtype), [y.astype(dtype) for y in past + new]
                wanted = oracle(x, k.astype(dtype), v.astype(dtype), keep=keep)
                found = elsa.attention(x, *cut[2:], past=cut[:2], present=True, lse=True, **options)
                self.near(found[0], wanted[0], limit)
                self.near(found[1], wanted[1])
                self.assertEqual(found[2].tobytes(), k.astype(dtype).tobytes())
                self.assertEqual(found[3].tobytes(), v.astype(dtype).tobytes())
                alone = elsa.attention(x, *cut[2:], past=cut[:2], **options)
                self.near(alone, wanted[0], limit)
        # The first call of a conversation has no past, and may say where its present goes.
        rooms = np.zeros_like(k[:, :, :14]), np.zeros_like(v[:, :, :14])
        found = elsa.attention(q, *past, present=rooms)
        self.near(found[0], oracle(q, *past)[0])
        for room, whole, same in zip(rooms, past, found[1:]):
            self.assertIs(room, same)
            self.assertEqual(room.tobytes(), whole.tobytes())
        one = elsa.attention(q[0], new[0][0], new[1][0], past=(past[0][0], past[1][0]), present=True)
        self.assertEqual([x.shape for x in one], [(4, 5, 12), (2, 19, 16), (2, 19, 12)])

    def test_a_cache_grows_in_place(self):
        q, k, v = tensors(2, 4, 19, 19, kv_heads=2)
        wanted = oracle(q, k, v, keep=np.tri(19, dtype=bool))[0]
        rooms = np.full((2, 2, 2, 32, 16), 7, np.float32)
        filled = 0
        for end in (3, 4, 5, 11, 19):
            cut = [x[:, :, filled:end] for x in (q, k, v)]
            past, present = [tuple(room[:, :, :n] for room in rooms) for n in (filled, end)]
            found, keys, values = elsa.attention(*cut, past=past, present=present, causal=True)
            self.assertTrue(keys is present[0] and values is present[1])
            self.near(found, wanted[:, :, filled:end])
            filled = end
        for room, whole in zip(rooms, (k, v)):
            self.assertTrue((room[:, :, :19] == whole).all() and (room[:, :, 19:] == 7).all())

    def test_refused(self):
        q, k, v = tensors(2, 4, 5, 5)
        room = np.zeros((2, 4, 10, 16), np.float32)
        for message, options in (
            ("past: array", {"past": k}),
            ("past: (1,); ", {"past": (1,)}),
            ("past_v: NoneType; ", {"past": (k, None)}),
            ("past_k: another type than q; ", {"past": (k.astype(np.float16), v)}),
            ("past_k: 3 axes, q has 4; ", {"past": (k[0], v)}),
            ("past_k", {"past": (k[:, :2], v[:, :2])}),
            ("past_v", {"past": (k, v[:, :, :2])}),
            ("present: 3; ", {"present": 3}),
            ("present_k", {"present": (room[:, :, :4], room[:, :, 5:])}),
            ("present_v: read-only; ", {"present": (room[:, :, :5], np.broadcast_to(np.float32(0), v.shape))}),
            ("present_", {"past": (k, v), "present": (room, room)}),
        ):
            self.refused(elsa.ArgumentError, message, q, k, v, **options)


class States(Case):
    def test_parts_of_the_keys(self):
        q, k, v = tensors(2, 4, 9, 41, kv_heads=2, v_dim=12)
        i, j = np.arange(9)[:, None], np.arange(41)
        for options, keep in (
            ({}, True),
            ({"causal": True}, j <= i),
            ({"causal": "bottom_right"}, j <= i + 32),
            ({"window": (30, 5), "causal": "bottom_right"}, (j >= i + 2) & (j <= i + 32)),
            ({"key_lengths": [3, 38]}, j < np.array([3, 38])[:, None, None, None]),
        ):
            wanted = oracle(q, k, v, keep=keep)
            states = []
            for start, end in ((0, 6), (6, 7), (7, 30), (30, 41)):
                cut = [x[:, :, start:end] for x in (k, v)]
                states.append(elsa.partial(q, *cut, key_offset=start, key_total=41, engine=SCALAR, **options))
                self.assertEqual([x.shape for x in states[-1]], [(2, 4, 9), (2, 4, 9), (2, 4, 9, 12)])
            before = [x.tobytes() for state in states for x in state]
            merged = elsa.merge(states)
            self.assertEqual(before, [x.tobytes() for state in states for x in state])
            with np.errstate(divide="ignore"):
                self.near(merged.m.astype(np.float64) + np.log(merged.s), wanted[1])
            for found, exact in zip(elsa.finish(merged), wanted):
                self.near(found, exact)
            # Merges are deterministic, and may be made in steps.
            again = elsa.merge([elsa.merge(states[:2])] + states[2:])
            self.assertEqual([x.tobytes() for x in again], [x.tobytes() for x in merged])
            for found, exact in zip(elsa.finish(elsa.merge(states[::-1])), wanted):
                self.near(found, exact)
        self.assertIs(elsa.merge(states[:1]).w, states[0].w)

    def test_parts_of_the_queries_and_masks(self):
        q, k, v = tensors(1, 2, 12, 12)
        mask = np.random.RandomState(3).uniform(size=(12, 12)) < 0.6
        wanted = oracle(q, k, v, keep=np.tri(12, dtype=bool) & mask)
        for start in (0, 4, 8):
            rows = slice(start, start + 4)
            states = [
                elsa.partial(
                    q[:, :, rows], k[:, :, keys], v[:, :, keys], mask=mask[rows, keys], causal=True,
                    key_offset=keys.start, key_total=12, query_offset=start, query_total=12,
                )
                for keys in (slice(0, 7), slice(7, 12))
            ]  # fmt: skip
            for found, exact in zip(elsa.finish(elsa.merge(states)), wanted):
                self.near(found, exact[:, :, rows])

    def test_all_keys_and_none(self):
        q, k, v = tensors(2, 4, 9, 13)
        state = elsa.partial(q, k, v, scale=0.2, softcap=3)
        for found, exact in zip(elsa.finish(state), oracle(q, k, v, scale=0.2, softcap=3)):
            self.near(found, exact)
        empty = elsa.partial(q, k[:, :, :0], v[:, :, :0])
        self.assertTrue((empty.m == NONE).all() and not empty.s.any())
        same = elsa.merge([empty, state, empty])
        self.assertEqual([x.tobytes() for x in same], [x.tobytes() for x in state])
        out, lse = elsa.finish(empty)
        self.assertTrue(not out.any() and (lse == NONE).all())
        # States of any layout are read; the rows of one head suffice.
        turned = elsa.States(*[np.asfortranarray(x) for x in state])
        self.assertEqual(elsa.finish(turned)[0].tobytes(), elsa.finish(state)[0].tobytes())
        part = elsa.finish([x[1, 2] for x in state])
        self.assertEqual(part[0].tobytes(), elsa.finish(state)[0][1, 2].tobytes())

    def test_refused(self):
        q, k, v = tensors(2, 4, 9, 13)
        state = elsa.partial(q, k, v)
        bad = elsa.ArgumentError
        for message, states in (
            ("states: none; ", []),
            ("states[1]: 3; ", [state, 3]),
            ("states[0].m: list; ", [([1.0], state.s, state.w)]),
            ("states[1].w: float64; ", [state, (state.m, state.s, state.w.astype(float))]),
            ("states[0]: shapes ", [(state.m, state.s[0], state.w)]),
            ("states[1]: [1, 4, 9, 16] of numpy; ", [state, [x[:1] for x in state]]),
            ("later.s", [state, (state.m, -state.s, state.w)]),
        ):
            self.refused(bad, message, states, function=elsa.merge)
        self.refused(bad, "states: ", state.m, function=elsa.finish)
        for message, options in (
            ("key_offset: -1; ", {"key_offset": -1}),
            ("key_total: True; ", {"key_total": True}),
            ("query_offset: 1.5; ", {"query_offset": 1.5}),
            ("causal: 'left'; ", {"causal": "left"}),
            ("window: 3; ", {"window": 3}),
        ):
            self.refused(bad, message, q, k, v, function=elsa.partial, **options)
        self.assertRaises(bad, elsa.partial, q, k, v, key_offset=1, key_total=13)


class Tasks(Case):
    def test_tasks_merge_into_the_whole(self):
        q, k, v = tensors(2, 4, 40, 40, kv_heads=2, v_dim=12)
        i, j = np.arange(40)[:, None], np.arange(40)
        mask = (i * 7 + j * 3) % 5 > 0
        for chunks, options, keep in (
            (7, {}, True),
            ([7], {"causal": True, "scale": 0.3, "softcap": 2}, j <= i),
            ((3, 7), {"window": (9, 4)}, (j >= i - 9) & (j <= i + 4)),
            (7, {"mask": mask}, mask),
            (1, {"key_lengths": [0, 33]}, j < np.array([0, 33])[:, None, None, None]),
        ):
            numbers = {name: x for name, x in options.items() if name in ("scale", "softcap")}
            wanted, count = oracle(q, k, v, keep=keep, **numbers), int(np.prod(chunks))
            parts = [elsa.task(q, k, v, chunks, n, engine=SCALAR, **options) for n in range(count)]
            self.assertEqual([x.shape for x in parts[-1]], [(2, 4, 40), (2, 4, 40), (2, 4, 40, 12)])
            for found, exact in zip(elsa.finish(elsa.merge(parts)), wanted):
                self.near(found, exact)
            pairs = 0
            for n, part in enumerate(parts):
                queries, keys = elsa.task_tokens(chunks, n, 40)
                pairs += len(queries) * len(keys)
                other = np.setdiff1d(i, queries)
                self.assertTrue((part.m[:, :, other] == NONE).all() and not part.s[:, :, other].any())
                # The tokens of a task are enough: a call over these alone has the same bits.
                some = dict(options, mask=mask[np.ix_(queries, keys)]) if "mask" in options else options
                cut = q[:, :, queries], k[:, :, keys], v[:, :, keys]
                alone = elsa.task(*cut, chunks=chunks, number=n, totals=(40, 40), engine=SCALAR, **some)
                self.assertEqual([x.tobytes() for x in alone], [x.tobytes() for x in part])
            self.assertGreaterEqual(pairs, 40 * 40)

    def test_fewer_queries_than_keys(self):
        q, k, v = tensors(1, 2, 9, 41)
        parts = [elsa.task(q, k, v, 7, n) for n in range(7)]
        for found, exact in zip(elsa.finish(elsa.merge(parts)), oracle(q, k, v)):
            self.near(found, exact)
        tokens = [elsa.task_tokens(7, n, 9, 41) for n in range(7)]
        self.assertEqual(sorted(set(sum([x[0] for x in tokens], []))), list(range(9)))
        self.assertEqual(sorted(set(sum([x[1] for x in tokens], []))), list(range(41)))
        # Most of the tasks have no query.
        states = [elsa.task(q[:, :, :1], k, v, 7, n) for n in range(7)]
        self.near(elsa.finish(elsa.merge(states))[0], oracle(q[:, :, :1], k, v)[0])

    def test_refused(self):
        q, k, v = tensors(1, 2, 40, 40)
        for message, options in (
            ("task: 2 chunks ", {"chunks": 2}),
            ("chunks: 'seven'; ", {"chunks": "seven"}),
            ("chunks: 0; ", {"chunks": [7, 0, 3]}),
            ("chunks: 0 levels; ", {"chunks": []}),
            ("number: -1; ", {"number": -1}),
            ("totals: 40; ", {"totals": 40}),
            ("causal: 'left'; ", {"causal": "left"}),
        ):
            self.refused(elsa.ArgumentError, message, q, k, v, function=elsa.task, **dict({"chunks": 7, "number": 0}, **options))
        for options in ({"number": 7}, {"totals": (50, 50)}):
            with self.assertRaises(elsa.ArgumentError):
                elsa.task(q, k, v, 7, **dict({"number": 0}, **options))
        self.refused(elsa.ArgumentError, "queries: -1; ", 7, 0, -1, function=elsa.task_tokens)


class Certificates(Case):
    def test_the_bound_holds(self):
        for engine in (None, SCALAR):
            for n in (1, 3):
                q, k, v = tensors(2, 4, 9, 200, v_dim=12, seed=n)
                keep = np.arange(200) <= 60 * np.arange(9)[:, None]
                for _ in range(2):
                    out, lse, found = elsa.attention(q, k, v, mask=keep, lse=True, certify=True, engine=engine)
                exact, logarithms = oracle(q, k, v, keep=keep)
                scores = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) / 4
                weights = np.where(keep, np.exp(scores - logarithms[..., None]), 0)
                allowed = found.bound * (weights @ np.abs(v.astype(np.float64)))
                error = np.abs(out - exact)
                self.assertTrue((error <= allowed).all() and error.any())
                self.assertTrue(found.claims and 0 < found.likely <= found.bound < 1e-2)
                self.assertEqual((len(found.channels), found.flags, found.reason), (12, (), ""))
                self.assertEqual(max(found.channels), found.absolute)
                self.assertTrue((error.max((0, 1, 2)) <= np.array(found.channels)).all())
                self.assertGreaterEqual(found.query_norm, np.linalg.norm(q, axis=-1).max() * 0.999)
                plain = elsa.attention(q, k, v, mask=keep, engine=engine)
                self.assertEqual(plain.tobytes(), out.tobytes())

    def test_no_claim(self):
        q, k, v = tensors(1, 2, 9, 13)
        v[0, 1, 4, 2] = np.nan
        out, found = elsa.attention(q, k, v, certify=True)
        self.assertFalse(found.claims)
        self.assertIn("v_nan", found.flags)
        self.assertTrue(found.reason and np.isnan(found.bound) and np.isnan(found.absolute))
        out, none = elsa.attention(q[:, :, :0], k, v, certify=True)
        self.assertEqual((out.shape, none), ((1, 2, 0, 16), None))


    def test_linear_attention(self):
        random = np.random.RandomState(4)
        make = lambda *shape: random.standard_normal(shape).astype(np.float32)
        q, k, v, past = make(2, 4, 37, 16), make(2, 4, 37, 16), make(2, 4, 37, 12), make(2, 4, 16, 12)
        k, decay = k / np.linalg.norm(k, axis=-1, keepdims=True), -np.abs(make(2, 4, 37))
        wanted = recurrence(q, k, v, decay=decay[..., None], past=past)
        plain = elsa.linear_attention(q, k, v, "gated", decay=decay, past_state=past, present_state=True, engine=SCALAR)
        room, certificates = past.copy(), []
        for states in ({"past_state": past, "present_state": True}, {"past_state": room, "present_state": room}):
            options = dict(states, decay=decay, engine=SCALAR)
            out, last, found = elsa.linear_attention(q, k, v, "gated", certify=True, **options)
            self.assertEqual([out.tobytes(), last.tobytes()], [x.tobytes() for x in plain])
            error = [np.abs(x - exact) for x, exact in zip((out, last), wanted)]
            self.assertTrue((error[0].max((0, 1, 2)) <= np.array(found.channels)).all() and error[0].any())
            self.assertTrue(error[1].max() <= found.state < 1e-2 and max(found.channels) == found.absolute < 1e-2)
            self.assertEqual((found.claims, found.unclaimed, len(found.channels)), (True, 0, 12))
            self.assertTrue(0 < found.gain <= 1)
            certificates.append(found)
        # A call in place has the certificate of its own past.
        self.assertEqual(*certificates)
        for _ in range(2):
            out, found = elsa.linear_attention(q * np.float32("inf"), k, v, certify=True)
            self.assertTrue(not found.claims and found.unclaimed > 0 and found.state == 0)
        self.assertIsNone(elsa.linear_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], certify=True)[1])
        bounds = {"cu_seqlens": [0, 20, 37], "certify": True}
        out, found = elsa.linear_attention(q[:1], k[:1], v[:1], **bounds)
        error = [np.abs(out[:, :, x] - recurrence(q[:1, :, x], k[:1, :, x], v[:1, :, x])[0]) for x in (slice(20), slice(20, 37))]
        self.assertTrue(max(x.max() for x in error) <= found.absolute)


class Budgets(Case):
    def given(self):
        """Returns q, k, v, and the keys whose weights are small; their values have the other sign."""
        random = np.random.RandomState(5)
        q, k, v = random.uniform(-0.01, 0.01, (3, 1, 2, 320, 8)).astype(np.float32)
        faint = np.arange(320) // 64 % 2 == 1
        q[..., 0], k[..., 0] = 8**0.5 * (7.9 + np.arange(320) / 800), np.where(faint, -1, 0)
        v += np.where(faint, 0.75, -0.75)[:, None].astype(np.float32)
        return q, k, v, faint

    def test_what_was_left_out(self):
        q, k, v, faint = self.given()
        kept, whole = oracle(q, k, v, keep=~faint), oracle(q, k, v)
        left = 1 - np.exp(kept[1] - whole[1])
        for engine in (None, SCALAR):
            for _ in range(2):
                options = {"lse": True, "certify": True, "error_budget": 1e-3, "engine": engine}
                out, lse, proved, found = elsa.attention(q, k, v, **options)
                self.near(out, kept[0], 1e-5)
                self.near(lse, whole[1])
                self.assertTrue((np.abs(out - whole[0]) > 1e-4).all())
                self.assertTrue((np.abs(out - whole[0]) <= 2 * found.share[..., None] + 1e-5).all())
                self.assertTrue((found.share >= left * 0.999).all() and (found.share <= left * 1.1).all())
                self.assertEqual((found.share.shape, found.share.dtype, found.rows), ((1, 2, 320), np.float32, 640))
                self.assertEqual((found.row_blocks, found.skipped_row_blocks, found.block_keys), (3200, 1280, 64))
                self.assertEqual(found.blocks * 2, found.skipped_blocks * 5)
                self.assertTrue(left.max() <= found.worst <= 1e-3 and 0 < found.mean <= found.p99 <= found.worst)
                self.assertTrue(proved.claims and proved.absolute >= found.worst)
            # A budget below the weights of a block, and none.
            out, found = elsa.attention(q, k, v, error_budget=1e-6, engine=engine)
            self.assertEqual((found.skipped_blocks, found.worst, found.share.any()), (0, 0, False))
            self.near(out, whole[0])
            self.near(elsa.attention(q, k, v, error_budget=0, engine=engine), whole[0])
        packed = {"cu_seqlens_q": [0, 100, 320], "error_budget": 1e-3}
        self.assertEqual(elsa.attention(q, k, v, **packed)[1].rows, 640)
        self.assertIsNone(elsa.attention(q[:, :, :0], k, v, error_budget=1e-3)[1])

    def test_schedules(self):
        q, k, v, faint = self.given()
        kept, whole = oracle(q, k, v, keep=~faint), oracle(q, k, v)
        left = 1 - np.exp(kept[1] - whole[1])
        for schedule, budget, skips in (
            ("flash", 0, False), ("vfa", 0, False), ("vsa", 0, True), (("vsa", 0.1), 0, True), (("vsa", 1e-6), 0, False),
            ("blasst", 0, True), (("blasst", 1e-6), 0, False), ("vfa", 1e-3, True), ("exact", 1e-3, True),
        ):  # fmt: skip
            for _ in range(2):
                out, found = elsa.attention(q, k, v, schedule=schedule, error_budget=budget, engine=SCALAR)
                self.near(out, kept[0] if skips else whole[0], 1e-5)
                self.assertEqual((found.rows, found.row_blocks, found.skipped_row_blocks), (640, 3200, 1280 if skips else 0))
                self.assertTrue((found.share >= left * 0.999).all() if skips else not found.share.any())
        # The exact schedule without a budget adds no report.
        self.assertEqual(elsa.attention(q, k, v, schedule="exact").shape, q.shape)

    def test_refused(self):
        q, k, v = tensors()
        for message, schedule in (
            ("schedule: 'vla'; ", "vla"),
            ("schedule: 3; ", 3),
            ("schedule: ['vsa', 0.1]; ", ["vsa", 0.1]),
            ("schedule: 'much'; ", ("vsa", "much")),
            ("lambda: 0.5; ", ("vfa", 0.5)),
            ("lambda: 0.5; ", ("exact", 0.5)),
            ("lambda: ", ("vsa", 1.5)),
        ):
            self.refused(elsa.ArgumentError, message, q, k, v, schedule=schedule)
        for budget in (-0.5, 1, 1.5, float("nan"), "much", 10**400):
            self.refused(elsa.ArgumentError, "error_budget: ", q, k, v, error_budget=budget)


class Source(object):
    """A source or a sink that is no array. Remembers the slices, and raises at the call with number `most`."""

    def __init__(self, array, most=None):
        self.array, self.most, self.boxes, self.threads = array, most, [], set()
        self.shape, self.dtype = array.shape, array.dtype

    def count(self, box):
        if len(self.boxes) == self.most:
            raise OSError("the disk is full")
        self.boxes.append(box)
        self.threads.add(threading.current_thread())

    def __getitem__(self, box):
        self.count(box)
        # Any depth of Python fits on the thread's stack.
        return self.deep(300, box)

    def deep(self, n, box):
        return self.deep(n - 1, box) if n else self.array[box].copy()

    def __setitem__(self, box, rows):
        self.count(box)
        self.array[box] = rows


class Streams(Case):
    def needed(self, *arguments, **options):
        """Returns the bytes that a stream needs at least."""
        with self.assertRaises(elsa.OutOfMemoryError) as caught:
            elsa.stream(*arguments, 1, **options)
        return int(re.search("host_budget: .*at least ([0-9]+)", str(caught.exception)).group(1))

    def in_units(self, *arguments, **options):
        """Runs a stream within small budgets until it has several units. The memory of the process varies."""
        more = 1 << 18
        for _ in range(100):
            try:
                report = elsa.stream(*arguments, self.needed(*arguments, **options) + more, **options)
            except elsa.OutOfMemoryError:
                continue
            if report.units > 2:
                return report
            more -= more // 4
        self.fail("no budget has several units")

    def test_memory_maps(self):
        q, k, v = tensors(2, 4, 700, 900, 32, kv_heads=2)
        wanted, logarithms = elsa.attention(q, k, v, causal=True, lse=True)
        self.near(wanted, oracle(q, k, v, keep=np.tri(700, 900, dtype=bool))[0])
        with tempfile.TemporaryDirectory() as folder:
            maps = []
            for name, array in (("q", q), ("k", k), ("v", v), ("y", np.zeros_like(q)), ("lse", logarithms * 0)):
                path = os.path.join(folder, name + ".npy")
                np.save(path, array)
                maps.append(np.load(path, mmap_mode="r+" if name in ("y", "lse") else "r"))
            report = self.in_units(*maps[:4], causal=True, lse=maps[4])
            self.assertEqual(report.finished, report.units)
            self.assertGreaterEqual(report.written_bytes, q.nbytes)
            maps[3].flush()
            self.assertEqual(np.load(os.path.join(folder, "y.npy")).tobytes(), wanted.tobytes())
            self.assertEqual(maps[4].tobytes(), logarithms.tobytes())

    def test_own_sources_and_sinks(self):
        q, k, v = tensors(1, 2, 200, 300, 16)
        mask = np.random.RandomState(3).uniform(size=(1, 1, 200, 300)) < 0.6
        bias = np.random.RandomState(4).standard_normal((200, 300)).astype(np.float16)
        wanted = oracle(q, k, v, keep=mask, added=bias.astype(np.float64))
        given = [Source(x) for x in (q, k, v)]
        out, state = Source(np.full_like(q, 7)), [Source(np.full(x, 7, np.float32)) for x in (q.shape[:3],) * 2 + (q.shape,)]
        report = elsa.stream(*given, out, 1 << 30, mask=mask, bias=Source(bias), states=state)
        self.assertEqual(report.units, report.finished)
        self.near(out.array, wanted[0])
        for found, exact in zip(elsa.finish([x.array for x in state]), wanted):
            self.near(found, exact)
        self.assertEqual([len(x.threads) for x in given], [1, 1, 1])
        self.assertFalse(given[0].threads & out.threads)

    def test_every_kind_of_input(self):
        q, k, v = tensors(4, 4, 12, 12)
        table = np.random.RandomState(7).standard_normal((35, 4)).astype(np.float32)
        index = np.random.RandomState(8).randint(0, 35, (12, 12))
        past = tuple(x[:, :, ::-1].copy() for x in (k, v))
        for options in (
            {"bias_table": table, "bias_index": index}, {"bias_table": table, "windows": ((6, 8), (3, 4), (1, 2))},
            {"window": (3, 2), "softcap": 2.0, "scale": 0.3}, {"key_lengths": [0, 3, 12, 7]}, {"past": past, "causal": True},
            {"mask": np.arange(12) < 9, "block": 128, "eta": 2},
        ):  # fmt: skip
            out = np.full_like(q, 7)
            elsa.stream(q, k, v, out, 1 << 30, engine=SCALAR, **options)
            if "block" in options:
                self.near(out, oracle(q, k, v, keep=options["mask"])[0])
                continue
            self.assertEqual(out.tobytes(), elsa.attention(q, k, v, engine=SCALAR, **options).tobytes())
        rooms = tuple(np.zeros((4, 4, 24, 16), np.float32) for _ in range(2))
        elsa.stream(q, k, v, out, 1 << 30, past=past, present=rooms)
        for room, old, new in zip(rooms, past, (k, v)):
            self.assertTrue((room == np.concatenate((old, new), 2)).all())
        cut, out = [x[0] for x in (q, k, v)], np.full_like(q[0], 7)
        elsa.stream(*cut, out, 1 << 30, cu_seqlens_q=[0, 5, 12], cu_seqlens_k=[0, 3, 12], engine=SCALAR)
        packed = elsa.attention(*cut, cu_seqlens_q=[0, 5, 12], cu_seqlens_k=[0, 3, 12], engine=SCALAR)
        self.assertEqual(out.tobytes(), packed.tobytes())

    def test_a_failure_is_raised_and_the_rest_written_later(self):
        q, k, v = tensors(2, 4, 700, 300, 32)
        error, most = None, 1
        while error is None or error.finished == 0:
            out = Source(np.zeros_like(q), most)
            try:
                elsa.stream(q, k, v, out, self.needed(q, k, v, out) + (1 << 17))
            except elsa.OutOfMemoryError:
                # The memory of the process varies.
                continue
            except elsa.StreamError as found:
                error = found
            most += 1
            self.assertLess(most, 50)
        self.assertIsInstance(error.__cause__, OSError)
        self.assertTrue(str(error).startswith("out: OSError: the disk is full; allowed: "), str(error))
        self.assertLess(error.finished, error.units)
        wanted = elsa.attention(q, k, v)
        self.assertNotEqual(out.array.tobytes(), wanted.tobytes())
        out.most = None
        report = error.resume()
        self.assertEqual((report.finished, report.units), (error.units, error.units))
        self.assertLess(report.written_bytes, q.nbytes)
        self.assertEqual(out.array.tobytes(), wanted.tobytes())
        for name, at in (("q", 0), ("k", 1), ("v", 2)):
            given = [q, k, v]
            given[at] = Source(given[at], most=0)
            with self.assertRaises(elsa.StreamError) as caught:
                elsa.stream(*given, out, 1 << 30)
            self.assertTrue(str(caught.exception).startswith(name + ": OSError: "), str(caught.exception))
            self.assertEqual(caught.exception.finished, 0)

    def test_ctrl_c_ends_a_stream(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        q, k, v = tensors()
        out = np.zeros_like(q)

        class Pressed(Source):
            def count(self, box):
                os.kill(os.getpid(), signal.SIGINT)

        self.assertRaises(KeyboardInterrupt, elsa.stream, q, Pressed(k), v, out, 1 << 30)
        elsa.stream(q, k, v, out, 1 << 30)
        self.assertEqual(out.tobytes(), elsa.attention(q, k, v).tobytes())

    def test_refused(self):
        q, k, v = tensors()
        out = np.zeros_like(q)
        bad = elsa.ArgumentError
        for message, arguments, options in (
            ("q: list; ", ([1.0], k, v, out, 1 << 30), {}),
            ("v: NoneType; ", (q, k, None, out, 1 << 30), {}),
            ("k: another type than q; ", (q, k.astype(np.float16), v, out, 1 << 30), {}),
            ("out: read-only; ", (q, k, v, np.broadcast_to(np.float32(0), q.shape), 1 << 30), {}),
            ("out: None; ", (q, k, v, None, 1 << 30), {}),
            ("out: ", (q, k, v, out[:, :, :5], 1 << 30), {}),
            ("lse: float32 [2, 4, 9, 16]; ", (q, k, v, out, 1 << 30), {"lse": out}),
            ("states: 3; ", (q, k, v, out, 1 << 30), {"states": 3}),
            ("mask: int64; ", (q, k, v, out, 1 << 30), {"mask": np.ones((9, 13), np.int64)}),
            ("host_budget: -1; ", (q, k, v, out, -1), {}),
            ("eta: 'long'; ", (q, k, v, out, 1 << 30), {"eta": "long"}),
            ("block", (q, k, v, out, 1 << 30), {"block": 7}),
        ):
            self.refused(bad, message, *arguments, function=elsa.stream, **options)
        wrong = Source(k)
        wrong.deep = lambda n, box: k[box][..., :1]
        with self.assertRaises(elsa.StreamError) as caught:
            elsa.stream(q, wrong, v, out, 1 << 30)
        self.assertIsInstance(caught.exception.__cause__, bad)


if __name__ == "__main__":
    unittest.main()
