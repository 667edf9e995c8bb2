"""Repeated calls of elsa.py with known shapes: they run a prepared call, with the results and errors of a first call.

`python3 test_calls.py` with elsa.py on PYTHONPATH, with or without _elsa. Python 3.6 and later.
"""

import ctypes
import gc
import os
import sys
import threading
import unittest
import weakref

import numpy as np

import elsa

from test_elsa import SCALAR, Case


def make(*shape, **options):
    seed = options.pop("seed")
    return np.random.RandomState(seed).standard_normal(shape).astype(options.pop("dtype", np.float32))


def attention(seed):
    """Yields functions that take an engine and make a call with the data of the seed."""
    q, k, v = [make(2, 4, 9, 16, seed=seed + 100 * n) for n in range(3)]
    k, v = [np.ascontiguousarray(x[:, :2]) for x in (k, v)]
    keep = make(9, 9, seed=seed) > -0.5
    keep[:, 0] = True
    added, table = make(4, 9, 9, seed=seed), make(25, 4, seed=seed)
    index = np.random.RandomState(seed).randint(0, 25, (9, 9))
    wide = np.broadcast_to(added[0], (2, 4, 9, 9))
    packed = make(2, 9, 3, 4, 16, seed=seed).transpose(2, 0, 3, 1, 4)
    lengths = [1 + seed % 9, 9 - seed % 7]
    for options in (
        {}, {"causal": True}, {"causal": "bottom_right"}, {"scale": 0.3}, {"scale": 0.2}, {"softcap": 1.5}, {"lse": True},
        {"window": (2, 3)}, {"window": (2, None)}, {"window": [2, 4]}, {"mask": keep}, {"mask": keep[:1]}, {"mask": added},
        {"mask": keep.astype(np.int64)}, {"mask": added.astype(float)}, {"mask": np.asfortranarray(added)}, {"mask": wide},
        {"mask": wide.astype(np.float16)[:, :, ::-1]}, {"bias": added}, {"bias": added.astype(np.float16), "mask": keep},
        {"bias_table": table, "bias_index": index}, {"bias_table": table, "windows": ((6, 3), (3, 3))},
        {"bias_table": table, "windows": ((6, 3), (3, 3), (1, 1))}, {"key_lengths": lengths},
        {"key_lengths": np.array(lengths), "lse": True},
    ):  # fmt: skip
        yield lambda engine, options=options: elsa.attention(q, k, v, engine=engine, **options)
    for past in ((k[:, :, :7], v[:, :, :7]), (k[:, :, :5], v[:, :, :5])):
        yield lambda engine, past=past: elsa.attention(q, k, v, engine=engine, past=past, present=True, causal=True)
        yield lambda engine, past=past: elsa.attention(q, k, v, engine=engine, past=past)
    for bounds in ([0, 4, 9], [0, 1 + seed % 7, 9]):
        cut = [x[:1] for x in (q, k, v)]
        yield lambda engine, bounds=bounds: elsa.attention(*cut, engine=engine, cu_seqlens_q=bounds, lse=True)

    def certified(engine):
        out, certificate = elsa.attention(q, k, v, engine=engine, certify=True)
        return out, np.array(certificate.channels)

    yield certified
    for place in ({}, {"key_offset": 1 + seed % 5, "key_total": 19}):
        yield lambda engine, place=place: tuple(elsa.partial(q, k, v, engine=engine, causal=True, **place))
    yield lambda engine: elsa.attention(*packed, engine=engine)
    yield lambda engine: elsa.attention(q[0], k[0], v[0], engine=engine, lse=True)
    yield lambda engine: elsa.attention(q[:, :, 3], k[:, :, 3], v[:, :, 3], engine=engine)
    yield lambda engine: elsa.attention(*[x.astype(np.float16) for x in (q, k, v)], engine=engine)
    yield lambda engine: elsa.attention(q[:0], k[:0], v[:0], engine=engine, lse=True)
    yield lambda engine: elsa.attention(q, k[:, :, :0], v[:, :, :0], engine=engine, lse=True)
    yield lambda engine: elsa.attention(q, k, v, engine=engine, out=np.full_like(q, 7))
    yield lambda engine: elsa.attention(q, k, v, engine=engine, out=np.full((2, 9, 5, 16), 7, "f4").swapaxes(1, 2)[:, 1:])


def linear(seed):
    q, k, v = make(2, 4, 37, 16, seed=seed), make(2, 2, 37, 16, seed=seed + 1), make(2, 4, 37, 12, seed=seed + 2)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay, beta = -np.abs(make(2, 4, 37, 16, seed=seed)), np.abs(make(2, 4, 37, seed=seed)) % 1
    past = make(2, 4, 16, 12, seed=seed)
    for options in (
        {}, {"rule": "gated", "decay": decay}, {"rule": "gated", "decay": decay[..., 0]}, {"rule": "delta", "beta": beta},
        {"rule": "gated_delta", "decay": decay, "beta": beta[:, :1]}, {"scale": 0.5}, {"normalize": 1e-6},
        {"direction": "reverse"}, {"direction": "bidirectional"}, {"direction": "non_causal"}, {"form": "recurrent"},
        {"form": "chunk", "chunk": 16}, {"form": "scan", "parts": 3}, {"present_state": True}, {"past_state": past},
        {"past_state": past, "present_state": True}, {"past_state": past, "present_state": np.zeros_like(past)},
        {"out": np.full((2, 4, 37, 12), 7, "f4")},
    ):  # fmt: skip
        yield lambda engine, options=options: elsa.linear_attention(q, k, v, engine=engine, **options)

    def in_place(engine, alias=lambda x: x):
        state = past.copy()
        return elsa.linear_attention(q, k, v, engine=engine, past_state=state, present_state=alias(state))

    yield in_place
    yield lambda engine: in_place(engine, lambda x: x[:])
    cut = [x[:1] for x in (q, k, v)]
    for bounds in ([0, 20, 37], [0, 5 + seed % 7, 37]):
        yield lambda engine, bounds=bounds: elsa.linear_attention(*cut, engine=engine, cu_seqlens=bounds)


def series(seed):
    u, delta, z = [make(2, 40, 6, seed=seed + n) for n in range(3)]
    a, d, filter = -np.abs(make(6, 5, seed=seed)), make(6, seed=seed), make(6, 4, seed=seed)
    b, c = [make(2, 40, 3, 5, seed=seed + n) for n in (3, 4)]
    states = {elsa.recurrence: (2, 6), elsa.selective: (2, 6, 5), elsa.conv: (2, 6, 3)}
    turned = [np.moveaxis(x, 1, -1).copy() for x in (u, delta, b, c)]
    for function, given, options in (
        (elsa.recurrence, (u, delta), {}), (elsa.recurrence, (-np.abs(u), delta), {"log": True}),
        (elsa.recurrence, (u, delta), {"reverse": True, "parts": 3}), (elsa.recurrence, turned[:2], {"layout": "bct"}),
        (elsa.recurrence, (u, np.repeat(delta, 2, 2)[..., ::2]), {}),
        (elsa.selective, (u, delta, a, b, c), {"d": d, "z": z, "delta_bias": d, "softplus": True}),
        (elsa.selective, (u, delta, a, b[:, :, 0], c[:, :, 0]), {"reverse": True}),
        (elsa.selective, (u, delta, a, make(2, 40, 6, 5, seed=seed)[:, :, ::2], np.repeat(c, 2, 3)[..., ::2]), {}),
        (elsa.selective, (u, delta, np.asfortranarray(a), a, a), {"d": np.repeat(d, 2)[::2]}),
        (elsa.selective, turned[:2] + [a] + turned[2:], {"layout": "bct"}),
        (elsa.conv, (u, filter), {"bias": d, "silu": True}), (elsa.conv, (u, filter[:, ::-1]), {"method": "fft"}),
        (elsa.conv, (u, filter[0]), {"order": "newest_last"}), (elsa.conv, (u, filter[:, None]), {"out": np.ones_like(u)}),
    ):  # fmt: skip
        past = make(*states[function], seed=seed)
        for more in ({}, {"present_state": True}, {"past_state": past}, {"past_state": past, "present_state": True}):
            both = dict(options, **more)
            yield lambda engine, f=function, given=given, both=both: f(*given, engine=engine, **both)

        def in_place(engine, f=function, given=given, options=options, past=past, alias=lambda x: x):
            state = past.copy()
            return f(*given, engine=engine, past_state=state, present_state=alias(state), **options)

        yield in_place
        yield lambda engine, call=in_place: call(engine, alias=lambda x: x[:])


RUN = ctypes.CFUNCTYPE(ctypes.c_int32, elsa._Handle, elsa._Handle, *[ctypes.c_void_p] * 3)


def bits(result):
    return [(x.shape, x.dtype, x.tobytes()) for x in (result if isinstance(result, tuple) else (result,))]


class Again(Case):
    """The results of calls that run a known call."""

    def test_every_option_has_the_bits_of_a_first_call(self):
        for calls in (attention, linear, series):
            engine = elsa.Engine(threads=2)
            wanted = [[bits(call(elsa.Engine(threads=2))) for call in calls(seed)] for seed in (1, 5)]
            self.assertNotEqual(*wanted)
            for _ in range(2):
                for seed, answers in zip((1, 5), wanted):
                    for n, (call, answer) in enumerate(zip(calls(seed), answers)):
                        # There are more calls than kept ones. Each is made twice: to prepare it, and to reuse it.
                        self.assertEqual(bits(call(engine)), answer, (calls.__name__, seed, n))
                        self.assertEqual(bits(call(engine)), answer, (calls.__name__, seed, n))

    def test_results_are_not_those_of_later_calls(self):
        q, k = make(1, 2, 9, 16, seed=1), make(1, 2, 9, 16, seed=2)
        for call in (
            lambda x: elsa.attention(x, k, k, lse=True),
            lambda x: elsa.linear_attention(x, x, k, present_state=True),
            lambda x: elsa.recurrence(x[0], k[0], present_state=True),
            lambda x: elsa.conv(x[0], x[0, 0, 0, :3], present_state=True),
        ):
            first = call(q)
            before = bits(first)
            second = call(k)
            self.assertEqual(bits(first), before)
            self.assertFalse(any(np.shares_memory(x, y) for x in first for y in second))

    def test_memory_that_moves_is_found(self):
        q, k, v = [make(1, 2, 30, 32, seed=n) for n in range(3)]
        wanted = elsa.attention(q, k, v).tobytes()
        moved = q.copy()
        for n in (3, 400, 90000):
            moved.resize((n, 2, 30, 32), refcheck=False)
            moved.resize((1, 2, 30, 32), refcheck=False)
            moved[:] = q
            self.assertEqual(elsa.attention(moved, k, v).tobytes(), wanted)
            self.assertEqual(elsa.attention(*[x.copy() for x in (q, k, v)]).tobytes(), wanted)

    def test_addresses_are_those_of_the_array_interface(self):
        whole = make(4, 6, 8, seed=1)
        for x in (whole, whole[1:], whole[:, 2:, ::2], whole[::-1], whole[:0], np.broadcast_to(whole[0, 0, 0], (3, 3))):
            words = [0, 0, 0]
            elsa._Numpy.write(words, [2, 0], [x, whole])
            self.assertEqual(words, [whole.__array_interface__["data"][0], 0, x.__array_interface__["data"][0]])
            elsa._write(elsa._Numpy.address, words, [1], [x])
            self.assertEqual(words[1], words[2])

    def test_calls_inside_a_call_are_prepared_apart(self):
        engine = elsa.Engine("scalar", threads=1)
        cases = [[make(1, 2, 9, 16, seed=10 * n + m) for m in range(3)] for n in range(3)]
        wanted = [elsa.attention(*case, engine=SCALAR).tobytes() for case in cases]
        elsa.attention(*cases[2], engine=engine)
        (prepared,) = engine._local.prepared.values()
        run, known, inner = prepared.run, prepared.known, []

        def interrupted(*arguments):
            # Stands for a signal handler or a finalizer that runs after the addresses are written and before the call.
            inner.append(elsa.attention(*cases[1], engine=engine).tobytes())
            return run(*arguments)

        prepared.run, prepared.known = RUN(interrupted), None
        outer = elsa.attention(*cases[0], engine=engine).tobytes()
        self.assertEqual([outer] + inner, wanted[:2])
        # The compiled module also knows this call; here the interpreter repeats its call.
        prepared.known, (maker,) = known, prepared.makers
        engine._local.prepared.update(dict.fromkeys(engine._local.prepared, prepared))

        def fails():
            prepared.makers[:] = [maker]
            raise MemoryError

        if elsa._calls is not None:
            prepared.makers[:] = [fails]
            outer = elsa.attention(*cases[0], engine=engine).tobytes()
            self.assertEqual([outer] + inner[1:], wanted[:2])

    def test_calls_of_a_finalizer_come_before_the_addresses(self):
        engine = elsa.Engine("scalar", threads=1)
        cases = [[make(1, 2, 9, 16, seed=10 * n + m) for m in range(3)] for n in range(2)]
        wanted = [elsa.attention(*case, engine=SCALAR).tobytes() for case in cases]
        elsa.attention(*cases[1], engine=engine)
        inner = []

        def finalized():
            if not inner:
                inner.append(None)
                inner[0] = elsa.attention(*cases[1], engine=engine).tobytes()
            return np.empty_like(cases[0][0])

        for _ in range(2):
            (prepared,) = engine._local.prepared.values()
            prepared.makers[:] = [finalized]
            inner.clear()
            outer = elsa.attention(*cases[0], engine=engine).tobytes()
            self.assertEqual([outer] + inner, wanted)

    def test_a_call_that_was_interrupted_leaves_nothing_behind(self):
        engine, case = elsa.Engine("scalar", threads=1), [make(1, 2, 9, 16, seed=n) for n in range(3)]
        wanted = elsa.attention(*case, engine=engine).tobytes()
        (prepared,) = engine._local.prepared.values()

        def interrupted(*arguments):
            raise KeyboardInterrupt

        prepared.run, prepared.known = interrupted, None
        self.assertRaises(KeyboardInterrupt, elsa.attention, *case, engine=engine)
        for _ in range(2):
            self.assertEqual(elsa.attention(*case, engine=engine).tobytes(), wanted)
        self.assertEqual(len(engine._local.prepared), 1)

    def test_a_status_is_raised_and_the_call_is_not_repeated(self):
        engine, x, made = elsa.Engine(threads=1), make(1, 2, 9, 16, seed=1), []
        elsa.attention(x, x, x, engine=engine)
        (prepared,) = engine._local.prepared.values()

        def run(*arguments):
            made.append(len(made))
            return 9 if len(made) in (3, 4) else 0

        prepared.run, prepared.known = RUN(run), None
        for call in range(6):
            if call in (2, 3):
                self.assertRaises(elsa.CancelledError, elsa.attention, x, x, x, engine=engine)
                # A prepared call that raised is not used again, except by this test.
                prepared.busy = False
                engine._local.prepared.update(dict.fromkeys(engine._local.prepared, prepared))
            else:
                elsa.attention(x, x, x, engine=engine)
        self.assertEqual(made, list(range(6)))

    @unittest.skipUnless(hasattr(os, "fork"), "needs os.fork")
    def test_a_child_of_fork_runs_known_calls(self):
        engine, case = elsa.Engine(threads=2), [make(1, 2, 100, 32, seed=n) for n in range(3)]
        wanted = elsa.attention(*case, engine=engine).tobytes()
        child = os.fork()
        if child == 0:
            found = [elsa.attention(*case, engine=engine).tobytes(), elsa.attention(*case, engine=engine).tobytes()]
            os._exit(0 if found == [wanted] * 2 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Refused(Case):
    """What a first call refuses is refused after a call of equal shapes, with the same message."""

    def test_attention(self):
        q, k, v = [make(1, 2, 9, 16, seed=n) for n in range(3)]
        out, lengths = np.empty_like(q), [9]
        mask, table, index = np.ones((9, 9), bool), make(4, 2, seed=1), np.zeros((9, 9), np.int64)
        odd = np.ndarray(q.shape, np.float32, np.zeros(q.nbytes + 1, np.uint8), 1)
        fixed, both = out.copy(), np.zeros((1, 3, 9, 16), np.float32)
        fixed.flags.writeable = False

        class Fake(object):
            dtype, shape, strides = q.dtype, q.shape, q.strides

        class Proxy(Fake):
            __class__ = property(lambda self: np.ndarray)

        good = (
            {}, {"out": out}, {"mask": mask}, {"mask": mask, "out": out}, {"key_lengths": lengths},
            {"bias_table": table, "bias_index": index},
        )  # fmt: skip
        wanted = [elsa.attention(q, k, v, **options).tobytes() for options in good]
        bad = elsa.ArgumentError
        for message, arguments, options in (
            ("q: list; ", ([1.0], k, v), {}),
            ("k: NoneType; ", (q, None, v), {}),
            ("k: Fake; ", (q, Fake(), v), {}),
            ("v: Proxy; ", (q, k, Proxy()), {}),
            ("q: Proxy; ", (Proxy(), k, v), {}),
            ("q: float64; ", (q.astype(float), k, v), {}),
            ("k: another type than q; ", (q, k.astype(np.float16), v), {}),
            ("k: int32; ", (q, k.view(np.int32), v), {}),
            ("q: ndarray of >f4; ", (q.astype(">f4"), k, v), {}),
            ("v: ndarray of >f4; ", (q, k, v.view(v.dtype.newbyteorder())), {}),
            ("v: MaskedArray of float32; ", (q, k, np.ma.array(v)), {}),
            ("q: MaskedArray of float32; ", (np.ma.array(q), k, v), {}),
            ("k: strides ", (q, k[:, :, ::-1], v), {}),
            ("k: strides ", (q, np.asfortranarray(k), v), {}),
            ("v: 3 axes, q has 4; ", (q, k, v[0]), {}),
            ("q: ", (odd, k, v), {}),
            ("k: ", (q, odd, v), {}),
            ("out: ", (q, k, v), {"out": odd}),
            ("out: ", (q, k, v), {"out": q}),
            ("out: ", (q, k, v), {"out": k}),
            ("out: ", (both[:, :2], k, v), {"out": both[:, 1:]}),
            ("out: read-only; ", (q, k, v), {"out": fixed}),
            ("out: list; ", (q, k, v), {"out": [1.0]}),
            ("out: MaskedArray of float32; ", (q, k, v), {"out": np.ma.array(out)}),
            ("out: float64; ", (q, k, v), {"out": out.astype(float)}),
            ("mask: uint16; ", (q, k, v), {"mask": mask.astype(np.uint16)}),
            ("mask: MaskedArray of bool; ", (q, k, v), {"mask": np.ma.array(mask)}),
            ("mask: list; ", (q, k, v), {"mask": [[True] * 9] * 9}),
            ("key_lengths", (q, k, v), {"key_lengths": [10]}),
            ("key_lengths", (q, k, v), {"key_lengths": [9, 9]}),
            ("key_lengths[0]: -1; ", (q, k, v), {"key_lengths": [-1]}),
            ("bias_index", (q, k, v), {"bias_table": table, "bias_index": index + 4}),
            ("bias_index", (q, k, v), {"bias_table": table, "bias_index": index - 1}),
            ("scale: 'one'; ", (q, k, v), {"scale": "one"}),
            ("scale", (q, k, v), {"scale": float("nan")}),
            ("causal: 'left'; ", (q, k, v), {"causal": "left"}),
            ("causal: []; ", (q, k, v), {"causal": []}),
            ("window: 3; ", (q, k, v), {"window": 3}),
        ):
            # A known call is made before and after each refused call.
            for before, answer in zip(good, wanted):
                self.assertEqual(elsa.attention(q, k, v, **before).tobytes(), answer)
            for _ in range(2):
                self.refused(bad, message, *arguments, **options)
        for options, answer in zip(good, wanted):
            self.assertEqual(elsa.attention(q, k, v, **options).tobytes(), answer)

    def test_states(self):
        q = make(1, 2, 9, 16, seed=1)
        state, fixed = np.zeros((1, 2, 16, 16), np.float32), np.zeros((1, 2, 16, 16), np.float32)
        fixed.flags.writeable = False
        u, last = make(2, 9, 6, seed=1), np.zeros((2, 6), np.float32)
        held = last.copy()
        held.flags.writeable = False
        for function, given, good, refused in (
            (elsa.linear_attention, (q, q, q), state, fixed),
            (elsa.recurrence, (u, u), last, held),
        ):
            for _ in range(2):
                function(*given, past_state=good.copy(), present_state=good)
                function(*given, past_state=good, present_state=good)
            options = {"function": function, "past_state": good}
            for message, present in (("read-only; ", refused), ("MaskedArray", np.ma.array(good))):
                message = "present_state: " + message
                self.refused(elsa.ArgumentError, message, *given, present_state=present, **options)


class Kept(Case):
    """The objects that calls keep, and the functions that they call."""

    def test_prepared_calls_and_plans_are_bounded(self):
        engine, found = elsa.Engine(threads=1), []

        def work():
            for n in list(range(1, elsa.MOST_PLANS + 20)) + [1, 2, 3]:
                x = make(1, 1, n, 8, seed=n)
                elsa.attention(x, x, x, engine=engine)
            found.append((len(engine._local.prepared), len(engine._plans)))

        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(found, [(elsa.MOST_PLANS, elsa.MOST_PLANS)] * 2)
        for n in range(elsa.MOST_PLANS + 20):
            kind = type(f"Kind{n}", (np.ndarray,), {})
            x = make(1, 1, 2, 8, seed=1)
            self.assertEqual(elsa.attention(x.view(kind), x, x).tobytes(), elsa.attention(x, x, x).tobytes())
        self.assertLessEqual(len(elsa._KINDS), elsa.MOST_PLANS)

    def test_no_tensor_outlives_its_call_and_no_engine_its_last_name(self):
        gc.disable()
        try:
            engine, tensors = elsa.Engine(threads=1), [make(1, 2, 9, 16, seed=n) for n in range(3)]
            mask, out = np.ones((9, 9), np.int64), np.empty_like(tensors[0])
            for _ in range(2):
                made, lse = elsa.attention(*tensors, mask=mask, lse=True, engine=engine)
                elsa.attention(*tensors, out=out, engine=engine)
                elsa.linear_attention(*tensors, engine=engine)
            alive = [weakref.ref(x) for x in tensors + [mask, out, made, lse]]
            del tensors, mask, out, made, lse
            self.assertEqual([x() for x in alive], [None] * len(alive))
            alive = weakref.ref(engine)
            del engine
            self.assertIsNone(alive())
        finally:
            gc.enable()

    def test_a_workspace_ends_when_a_larger_one_takes_its_place(self):
        engine, kept = elsa.Engine(threads=1), []
        for n in (20, 400, 3000, 20):
            x = make(1, 1, n, 8, seed=n)
            for _ in range(3):
                elsa.attention(x, x, x, engine=engine)
            kept.append(weakref.ref(next(iter(engine._local.places.values())).workspace))
        self.assertEqual(len({x() for x in kept} - {None}), 1)

    def test_threads_that_change_often(self):
        engine, faults, interval = elsa.Engine(threads=1), [], sys.getswitchinterval()
        cases = [[make(1, 2, 150, 32, seed=10 * n + m) for m in range(3)] for n in range(4)]
        wanted = [elsa.attention(*case, engine=engine).tobytes() for case in cases]

        def work(n):
            try:
                for _ in range(100):
                    if elsa.attention(*cases[n], engine=engine).tobytes() != wanted[n]:
                        faults.append(n)
            except elsa.ElsaError as error:
                faults.append(error)

        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        finally:
            sys.setswitchinterval(interval)
        self.assertEqual(faults, [])

    def test_a_known_call_makes_one_foreign_call_and_its_outputs(self):
        """Bounds the cost of a known call by the number of functions that it calls, without a clock."""
        engine, q, u = elsa.Engine(threads=1), make(1, 2, 9, 16, seed=1), make(2, 9, 6, seed=2)
        out, mask, filter = np.empty_like(q), np.ones((9, 9), bool), make(6, 4, seed=3)
        for calls, made, call in (
            (5, 1, lambda: elsa.attention(q, q, q, engine=engine)),
            (5, 2, lambda: elsa.attention(q[0], q[0], q[0], engine=engine, lse=True, causal=True)),
            (6, 0, lambda: elsa.attention(q, q, q, engine=engine, out=out)),
            (6, 1, lambda: elsa.attention(q, q, q, engine=engine, mask=mask)),
            (17, 1, lambda: elsa.linear_attention(q, q, q, engine=engine)),
            (17, 2, lambda: elsa.linear_attention(q, q, q, engine=engine, present_state=True)),
            (10, 1, lambda: elsa.recurrence(u, u, engine=engine)),
            (9, 1, lambda: elsa.selective(u, u, filter, filter, filter, engine=engine)),
            (11, 1, lambda: elsa.conv(u, filter, engine=engine)),
        ):
            call()
            prepared = list(engine._local.prepared.values())[-1]
            counts, library, run, makers = {"run": 0, "make": 0, "call": 0}, elsa._lib, prepared.run, prepared.makers[:]

            def counted(name, function):
                def count(*arguments):
                    counts[name] += 1
                    return function(*arguments)

                return count

            def profile(frame, event, argument):
                name = frame.f_code.co_name
                # Comprehensions are functions of old versions of Python only.
                if event == "call" and frame.f_code.co_filename == elsa.__file__ and not name.endswith("comp>"):
                    counts["call"] += 1

            prepared.run, prepared.known = RUN(counted("run", run)), None
            prepared.makers[:] = [counted("make", maker) for maker in makers]
            call()
            counts.update(dict.fromkeys(counts, 0))
            # A use of the library besides the prepared function is an error.
            elsa._lib = None
            sys.setprofile(profile)
            try:
                call()
            finally:
                sys.setprofile(None)
                elsa._lib = library
            self.assertEqual((counts["run"], counts["make"]), (1, made))
            # The compiled module makes the calls of `_call`.
            self.assertEqual(counts["call"], calls - 4 if elsa._calls else calls)


@unittest.skipUnless(elsa._calls, "without _elsa")
class Compiled(Case):
    """The compiled module."""

    def test_describes_arrays_as_their_attributes_do(self):
        whole = make(4, 6, 8, seed=1)
        arrays = whole, whole[1:, :, ::-2], whole[:0], np.asfortranarray(whole), whole[0, 0, 0:1][0:1].reshape(()), whole > 0
        dtypes, words = [x.dtype for x in arrays], []
        for x in arrays:
            words += (x.ndim,) + x.shape + x.strides
        wanted = (*dtypes, bytes((ctypes.c_ssize_t * len(words))(*words)))
        self.assertEqual(elsa._calls.describe(arrays), wanted)
        for wrong in ([whole], (whole, None), (1.0,), whole):
            self.assertIsNone(elsa._calls.describe(wrong))

    def test_arrays_of_another_layout_are_left_to_the_interpreter(self):
        class Calls(object):
            classes = []
            reads = classes.append
            describe = staticmethod(lambda arrays: (arrays[0].dtype, b"other"))

        class Kind(object):
            describe = known = None

        calls, elsa._calls = elsa._calls, Calls
        try:
            elsa._read_by_calls(Kind, np.zeros(2))
        finally:
            elsa._calls = calls
        self.assertEqual((Kind.describe, Kind.known, Calls.classes), (None, None, [np.ndarray, None]))

    def test_objects_are_freed(self):
        x = make(1, 1, 9, 8, seed=1)
        counted = elsa._Attention, elsa._engines, x.dtype, np.ndarray, elsa._elsa.Known, elsa._check
        for calls in (20, 2000):
            engine = elsa.Engine(threads=1)
            before = [sys.getrefcount(y) for y in counted]
            for _ in range(calls):
                elsa.attention(x, x, x, out=np.empty_like(x), engine=engine)
                self.assertRaises(elsa.ArgumentError, elsa.attention, x, x, x, out=x, engine=engine)
                self.assertRaises(elsa.ArgumentError, elsa.attention, x, None, x, engine=engine)
            del engine
            gc.collect()
            self.assertLess(max(abs(sys.getrefcount(y) - n) for y, n in zip(counted, before)), 20)


if __name__ == "__main__":
    unittest.main()
