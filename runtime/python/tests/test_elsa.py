"""elsa.py with arrays of numpy, against an oracle in f64 and against the tool.

`python3 test_elsa.py` with elsa.py on PYTHONPATH. ELSA_TOOL names the tool `elsa`, whose outputs must
then have the same bits. Python 3.6 and later.
"""

import ctypes
import ctypes.util
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

import elsa

HERE = pathlib.Path(__file__).resolve().parent
SCALAR = elsa.Engine("scalar", threads=2)


def oracle(q, k, v, scale=None, softcap=0.0, added=0.0, keep=True):
    """Returns the output and the log-sum-exp in f64; `added` and `keep` are broadcast to the scores."""
    q, k, v = [np.asarray(x, np.float64) for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    s = s + added
    s = np.where(np.broadcast_to(keep, s.shape), s, -np.inf)
    out, lse = np.zeros(q.shape[:3] + v.shape[3:]), np.full(q.shape[:3], -np.inf)
    for at in np.ndindex(*q.shape[:3]):
        alive = np.isfinite(s[at])
        if alive.any():
            most = s[at][alive].max()
            weights = np.exp(s[at][alive] - most)
            out[at] = weights @ v[at[:2]][alive] / weights.sum()
            lse[at] = most + np.log(weights.sum())
    return out, lse


def tensors(batch=2, heads=4, queries=9, keys=13, dim=16, kv_heads=None, v_dim=None, dtype=np.float32, seed=1):
    random = np.random.RandomState(seed)
    kv = heads if kv_heads is None else kv_heads
    make = lambda *shape: random.standard_normal(shape).astype(dtype)
    return (
        make(batch, heads, queries, dim) * 2,
        make(batch, kv, keys, dim),
        make(batch, kv, keys, v_dim or dim),
    )


def recurrence(q, k, v, decay=None, beta=None, past=None, scale=None, normalize=None, reverse=False):
    """Returns the output and the last states of linear attention in f64, token by token. All inputs have four axes, also beta
    and decay."""
    q, k, v = [np.asarray(x, np.float64) for x in (q, k, v)]
    if normalize is not None:
        q, k = [x / np.sqrt((x * x).sum(-1, keepdims=True) + normalize) for x in (q, k)]
    states, tokens, heads = v.shape[1], v.shape[2], max(q.shape[1], v.shape[1])
    k = np.repeat(k, states // k.shape[1], 1)
    of = np.arange(heads) * states // heads
    q = q[:, np.arange(heads) * q.shape[1] // heads]
    state = np.zeros((q.shape[0], states, q.shape[3], v.shape[3])) if past is None else past.astype(np.float64)
    out = np.zeros(q.shape[:3] + v.shape[3:])
    for t in range(tokens)[:: -1 if reverse else 1]:
        if decay is not None:
            state = state * np.exp(decay[:, :, t].astype(np.float64))[..., None]
        u = v[:, :, t]
        if beta is not None:
            u = (u - np.einsum("bhkv,bhk->bhv", state, k[:, :, t])) * beta[:, :, t]
        state = state + k[:, :, t, :, None] * u[:, :, None]
        out[:, :, t] = np.einsum("bhkv,bhk->bhv", state[:, of], q[:, :, t])
    return out * (q.shape[3] ** -0.5 if scale is None else scale), state


class Case(unittest.TestCase):
    def near(self, found, wanted, limit=4e-6):
        self.assertEqual(found.shape, wanted.shape)
        same = found == wanted  # infinities
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0, np.abs(found.astype(np.float64) - wanted))
        worst = error.max() if error.size else 0.0
        self.assertFalse(not worst <= limit * np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0), worst)

    def refused(self, kind, message, *arguments, **options):
        function = options.pop("function", elsa.attention)
        with self.assertRaises(kind) as caught:
            function(*arguments, **options)
        self.assertIsInstance(caught.exception, elsa.ElsaError)
        self.assertTrue(str(caught.exception).startswith(message), str(caught.exception))
        self.assertIn("; allowed: ", str(caught.exception))


class Structs(Case):
    def test_layout_is_that_of_the_header(self):
        structs = {
            "elsa_view": elsa._View, "elsa_mask": elsa._Mask, "elsa_table": elsa._Table, "elsa_windows": elsa._Windows,
            "elsa_engine_options": elsa._EngineOptions, "elsa_engine_info": elsa._EngineInfo,
            "elsa_problem": elsa._Problem, "elsa_plan_info": elsa._PlanInfo, "elsa_input": elsa._Memory,
            "elsa_output": elsa._Memory, "elsa_integers": elsa._Integers, "elsa_inputs": elsa._Inputs,
            "elsa_outputs": elsa._Outputs, "elsa_plan": elsa._Handle, "elsa_linear_problem": elsa._LinearProblem,
            "elsa_linear_options": elsa._LinearOptions, "elsa_linear_inputs": elsa._LinearInputs,
            "elsa_linear_outputs": elsa._StateOutputs, "elsa_recurrence_problem": elsa._RecurrenceProblem,
            "elsa_selective_problem": elsa._SelectiveProblem, "elsa_convolution_problem": elsa._ConvolutionProblem,
            "elsa_series_options": elsa._SeriesOptions, "elsa_recurrence_inputs": elsa._RecurrenceInputs,
            "elsa_selective_inputs": elsa._SelectiveInputs, "elsa_convolution_inputs": elsa._ConvolutionInputs,
            "elsa_series_outputs": elsa._StateOutputs, "elsa_plan_options": elsa._PlanOptions,
            "elsa_certified": elsa._Certified, "elsa_chunk": elsa._Chunk, "elsa_states_in": elsa._States,
            "elsa_states_out": elsa._States, "elsa_stream_options": elsa._StreamOptions, "elsa_stream_info": elsa._StreamInfo,
            "elsa_rows": elsa._Rows, "elsa_stream_data": elsa._StreamData, "elsa_stream_report": elsa._StreamReport,
            "elsa_report": elsa._Report, "elsa_left_out": elsa._LeftOut, "elsa_linear_certified": elsa._LinearCertified,
            "elsa_gradients_options": elsa._GradientsOptions, "elsa_gradients_inputs": elsa._GradientsInputs,
            "elsa_gradients_outputs": elsa._GradientsOutputs, "elsa_task_options": elsa._TaskOptions,
            "elsa_task_info": elsa._TaskInfo, "elsa_task": elsa._Handle,
        }  # fmt: skip
        checked = 0
        for line in (HERE.parent.parent / "capi/abi.txt").read_text().splitlines():
            words = line.split()
            if words[0] == "bytes" and words[1] in structs:
                self.assertEqual(ctypes.sizeof(structs[words[1]]), int(words[2]), line)
            if words[0] == "field" and words[1] in structs:
                name = words[-1].lstrip("*").split("[")[0]
                field = getattr(structs[words[1]], name)
                self.assertEqual((field.offset, field.size), (int(words[2]), int(words[3])), line)
                checked += 1
            if words[0] == "constant":
                self.number(words[1][5:], int(words[2]))
        self.assertGreater(checked, 350)
        self.assertEqual((len(elsa._OPERANDS), len(elsa._CERTIFIED)), (15, 12))

    def number(self, name, value):
        """Compares a constant of the header with elsa.py."""
        family, word = name.split("_")[0], name.partition("_")[2].lower()
        if family == "ABI":
            self.assertEqual(getattr(elsa, name), value)
        if family == "OPERAND":
            self.assertEqual(elsa._OPERANDS[value], word)
        if family == "SCHEDULE":
            self.assertEqual(elsa._SCHEDULES[value], word)
        if family == "CERTIFIED":
            self.assertEqual(1 << elsa._CERTIFIED.index(word), value)
        if name.startswith("STREAM_"):
            self.assertEqual(elsa._WANTED[{"states": "state_w"}.get(word, word)], value)

    def test_module_prints_what_it_found(self):
        text = subprocess.check_output([sys.executable, elsa.__file__]).decode()
        for word in ("libelsa", elsa.version(), "scalar", "present"):
            self.assertIn(word, text)

    def test_library_that_is_none(self):
        for path in ("/nowhere/libelsa.so.1", ctypes.util.find_library("c")):
            run = subprocess.run(
                [sys.executable, elsa.__file__], env=dict(os.environ, ELSA_LIBRARY=path), stderr=subprocess.PIPE
            )
            self.assertEqual(run.returncode, 1)
            self.assertIn("LibraryError: libelsa.so: ", run.stderr.decode())


class Answers(Case):
    def test_types_shapes_and_groups(self):
        for dtype, limit in ((np.float32, 4e-6), (np.float16, 2e-3)):
            for heads, kv_heads, queries, keys, dim, v_dim in (
                (4, 4, 9, 13, 16, 16), (6, 2, 33, 70, 64, 64), (3, 3, 197, 197, 64, 64), (2, 1, 5, 8, 12, 20),
                (1, 1, 1, 1, 1, 1), (1, 1, 1, 100, 32, 32),
            ):  # fmt: skip
                q, k, v = tensors(2, heads, queries, keys, dim, kv_heads, v_dim, dtype)
                wanted, logarithms = oracle(q, k, v)
                found, lse = elsa.attention(q, k, v, lse=True)
                self.assertEqual(found.dtype, dtype)
                self.near(found, wanted, limit)
                self.near(lse, logarithms, 4e-6)
                self.near(elsa.attention(q, k, v, engine=SCALAR), wanted, limit)

    def test_ranks(self):
        q, k, v = tensors()
        whole = elsa.attention(q, k, v)
        heads, lse = elsa.attention(q[1], k[1], v[1], lse=True)
        self.assertEqual((heads.shape, lse.shape), ((4, 9, 16), (4, 9)))
        self.assertTrue((heads == whole[1]).all())
        self.assertTrue((elsa.attention(q[1, 2], k[1, 2], v[1, 2]) == whole[1, 2]).all())

    def test_views_are_read_where_they_lie(self):
        random = np.random.RandomState(3)
        packed = random.standard_normal((2, 19, 3, 4, 16)).astype(np.float32)
        q, k, v = packed.transpose(2, 0, 3, 1, 4)
        wanted = oracle(q, k, v)[0]
        room = np.full((2, 19, 5, 16), 7, np.float32)
        out = room.transpose(0, 2, 1, 3)[:, :4]
        self.assertIs(elsa.attention(q, k, v, out=out), out)
        self.near(out, wanted)
        self.assertTrue((room[:, :, 4] == 7).all())
        dense = elsa.attention(*[np.ascontiguousarray(x) for x in (q, k, v)])
        self.assertTrue((dense == out).all())
        shared = np.broadcast_to(k[:1], k.shape)
        self.near(elsa.attention(q, shared, v), oracle(q, shared, v)[0])
        self.near(elsa.attention(q[:, :, ::2], k[:, ::-1][:, ::-1], v), wanted[:, :, ::2])
        far = np.lib.stride_tricks.as_strided(q[:1], strides=(7,) + q.strides[1:])
        self.assertTrue((elsa.attention(far, k[:1], v[:1]) == elsa.attention(q[:1], k[:1], v[:1])).all())

    def test_masks(self):
        q, k, v = tensors()
        random = np.random.RandomState(5)
        keep = random.uniform(size=(2, 4, 9, 13)) < 0.6
        keep[0, 1, 3] = False
        wanted, logarithms = oracle(q, k, v, keep=keep)
        found, lse = elsa.attention(q, k, v, mask=keep, lse=True)
        self.near(found, wanted)
        self.near(lse, logarithms)
        self.assertTrue((found[0, 1, 3] == 0).all() and lse[0, 1, 3] == -np.inf)
        self.assertGreater(np.abs(found - elsa.attention(q, k, v)).max(), 0.1)
        for dtype in (np.float32, np.float16):
            added = random.standard_normal((9, 13)).astype(dtype)
            added[2, :5] = -np.inf
            wide = np.broadcast_to(added, (2, 4, 9, 13))
            wanted = oracle(q, k, v, added=added.astype(np.float64))[0]
            for mask in (added, wide, np.asfortranarray(added), added[None]):
                self.near(elsa.attention(q, k, v, mask=mask), wanted)
            # Broadcast elements are neither copied nor read more than once.
            taken = elsa._Array("mask", elsa._Numpy, *elsa._Numpy.of("mask", np.ndarray, elsa._Numpy.description(wide)))
            taken.narrow(None)
            self.assertEqual((taken.shape, taken.copied), ((1, 1, 9, 13), False))
            self.near(elsa.attention(q, k, v, bias=wide, mask=keep), oracle(q, k, v, added=added, keep=keep)[0])
        padding = np.arange(13) < np.array([13, 4])[:, None, None, None]
        self.near(elsa.attention(q, k, v, mask=padding), oracle(q, k, v, keep=padding)[0])
        self.near(elsa.attention(q, k, v, mask=keep[..., ::2][..., :1]), oracle(q, k, v, keep=keep[..., :1])[0])

    def test_masks_of_integers_and_of_float64(self):
        q, k, v = tensors()
        keep = np.random.RandomState(5).rand(2, 1, 1, 13) < 0.7
        wanted = elsa.attention(q, k, v, mask=keep)
        for mask in (keep.astype(np.uint8) * 2, keep * np.int32(-256), keep * np.int64(1 << 32)):
            self.assertTrue((elsa.attention(q, k, v, mask=mask) == wanted).all(), mask.dtype)
        added = np.random.RandomState(6).randn(9, 13)
        self.near(elsa.attention(q, k, v, mask=added, bias=added), oracle(q, k, v, added=2 * added)[0])
        for least in (np.finfo(np.float64).min, -1e308, -np.inf):
            mask = np.where(keep, 0.0, least)
            self.assertTrue((elsa.attention(q, k, v, mask=mask) == wanted).all(), least)
            # A finite mask value, the same for all keys, excludes none: the result is the mean. With -inf it is zero.
            every = elsa.attention(q, k, v, mask=np.full((9, 13), least))
            mean = v.mean(2, keepdims=True) if least > -np.inf else 0.0
            self.near(every, np.broadcast_to(mean, q.shape))

    def test_every_axis_but_dim_may_be_empty(self):
        for b, h, nq, nk in ((0, 4, 9, 13), (2, 0, 9, 13), (2, 4, 0, 13), (2, 4, 9, 0), (0, 0, 0, 0)):
            q, k, v = tensors(b, h, nq, nk)
            for options in ({}, {"causal": True}, {"mask": np.ones((1, 1, 1, nk), bool)}, {"key_lengths": [0] * b}):
                out, lse = elsa.attention(q, k, v, lse=True, **options)
                self.assertEqual((out.shape, lse.shape), (q.shape, q.shape[:3]))
                self.assertTrue((out == 0).all() and (lse == -np.inf).all())
            strided = elsa.attention(q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k, v)
            self.assertEqual(strided.shape, q.shape)
            if nq == nk or not b * h:
                for form in ("recurrent", "chunk", "parallel", "scan"):
                    q, k, v = tensors(b, h, nq, nq)
                    out, state = elsa.linear_attention(q, k, v, "linear", form=form, present_state=True)
                    self.assertEqual((out.shape, state.shape), (q.shape, (b, h, 16, 16)))
                    self.assertFalse(state.any())

    def test_masked_keys_may_hold_anything(self):
        q, k, v = tensors()
        wanted = elsa.attention(q, k, v, mask=np.arange(13) < 10)
        k[:, :, 10:], v[:, :, 10:] = np.nan, np.inf
        found = elsa.attention(q, k, v, mask=np.arange(13) < 10)
        self.assertTrue((found == wanted).all())
        self.near(elsa.attention(q, k, v, key_lengths=[10, 7]), oracle(
            q, np.nan_to_num(k), np.where(np.isfinite(v), v, 0),
            keep=np.arange(13) < np.array([10, 7])[:, None, None, None])[0])  # fmt: skip
        k[0, 0, 3] = np.nan
        self.assertTrue(np.isnan(elsa.attention(q, k, v, key_lengths=[10, 10])[0, 0]).all())

    def test_causal_window_softcap_scale(self):
        q, k, v = tensors()
        i, j = np.arange(9)[:, None], np.arange(13)
        for options, keep in (
            ({"causal": True}, j <= i),
            ({"causal": "top_left"}, j <= i),
            ({"causal": "bottom_right"}, j <= i + 4),
            ({"window": (2, 3)}, (j >= i - 2) & (j <= i + 3)),
            ({"window": (None, 0)}, j <= i),
            ({"window": (1, -1)}, j >= i - 1),
            ({"causal": True, "window": (2, 5)}, (j >= i - 2) & (j <= i)),
            ({"key_lengths": np.array([5, 13])}, j < np.array([5, 13])[:, None, None, None]),
            ({"softcap": 1.5}, True),
            ({"scale": 0.7, "softcap": 3}, True),
            ({"scale": -0.25}, True),
        ):
            numbers = {name: x for name, x in options.items() if name in ("scale", "softcap")}
            self.near(elsa.attention(q, k, v, **options), oracle(q, k, v, keep=keep, **numbers)[0])

    def test_tables(self):
        rows, columns, heads = 3, 4, 4
        tokens = rows * columns
        q, k, v = tensors(4, heads, tokens, tokens)
        table = np.random.RandomState(7).standard_normal(((2 * rows - 1) * (2 * columns - 1), heads)).astype(np.float32)
        r, c = np.divmod(np.arange(tokens), columns)
        index = (r[:, None] - r + rows - 1) * (2 * columns - 1) + (c[:, None] - c + columns - 1)
        added = table[index].transpose(2, 0, 1)
        wanted = oracle(q, k, v, added=added)[0]
        self.near(elsa.attention(q, k, v, bias_table=table, bias_index=index), wanted)
        self.near(elsa.attention(q, k, v, bias_table=table, windows=((6, 8), (3, 4))), wanted)
        # In the last row and the last column of windows, tokens attend only their own side of the seam.
        down, right = 1, 2
        side = np.zeros((4, tokens), int)
        side[2:] += 2 * (r >= rows - down)
        side[1::2] += c >= columns - right
        keep = (side[:, :, None] == side[:, None, :])[:, None]
        shifted = elsa.attention(q, k, v, bias_table=table, windows=((6, 8), (3, 4), (down, right)))
        self.near(shifted, oracle(q, k, v, added=added, keep=keep)[0])
        self.assertGreater(np.abs(shifted - wanted).max(), 0.1)

    def test_no_tokens(self):
        q, k, v = tensors()
        self.assertEqual(elsa.attention(q[:, :, :0], k, v).shape, (2, 4, 0, 16))
        out, lse = elsa.attention(q, k[:, :, :0], v[:, :, :0], lse=True)
        self.assertTrue((out == 0).all() and (lse == -np.inf).all())
        self.refused(elsa.ArgumentError, "q: head size 0; ", q[..., :0], k[..., :0], v)

    def test_bits_are_those_of_the_tool(self):
        tool = os.environ.get("ELSA_TOOL")
        if not tool:
            self.skipTest("ELSA_TOOL is not set")
        q, k, v = tensors(1, 3, 197, 197, 64)
        mask = np.random.RandomState(9).uniform(size=(197, 197)) < 0.7
        with tempfile.TemporaryDirectory() as folder:
            for name, array in (("q", q), ("k", k), ("v", v), ("mask", mask)):
                np.save(os.path.join(folder, name + ".npy"), array)
            words = "run --q q.npy --k k.npy --v v.npy --mask mask.npy --out y.npy --lse-out lse.npy".split()
            subprocess.check_call([tool] + words, cwd=folder, stdout=subprocess.DEVNULL)
            wanted = [np.load(os.path.join(folder, name)) for name in ("y.npy", "lse.npy")]
        for found, wanted in zip(elsa.attention(q, k, v, mask=mask, lse=True), wanted):
            self.assertEqual(found.tobytes(), wanted.tobytes())


class Linear(Case):
    """linear_attention against the recurrence."""

    def given(self, heads=4, states=4, key_heads=4, tokens=37, dk=16, dv=12, seed=1):
        random = np.random.RandomState(seed)
        make = lambda *shape: random.standard_normal((2,) + shape).astype(np.float32)
        q, k, v = make(heads, tokens, dk), make(key_heads, tokens, dk), make(states, tokens, dv)
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        decay, beta = -np.abs(make(states, tokens, dk)), 1 / (1 + np.exp(-make(states, tokens)))
        return q, k, v, decay, beta, make(states, dk, dv)

    def test_rules_forms_and_heads(self):
        for heads, states, key_heads in ((4, 4, 4), (8, 4, 2), (2, 4, 1)):
            q, k, v, decay, beta, past = self.given(heads, states, key_heads)
            for rule, options in (
                ("linear", {}),
                ("gated", {"decay": decay}),
                ("gated", {"decay": decay[..., 0]}),
                ("delta", {"beta": beta}),
                ("gated_delta", {"decay": decay[..., 0], "beta": beta[:, :1]}),
                ("gated_delta", {"decay": decay, "beta": beta}),
            ):
                last = dict(options)
                if "beta" in last:
                    last["beta"] = last["beta"][..., None]
                if "decay" in last and last["decay"].ndim == 3:
                    last["decay"] = last["decay"][..., None]
                wanted = recurrence(q, k, v, past=past, **last)
                for form in elsa._FORMS:
                    found = elsa.linear_attention(
                        q, k, v, rule, past_state=past, present_state=True, form=form, **options
                    )
                    for x, y in zip(found, wanted):
                        self.near(x, y, 1e-5)
                self.near(elsa.linear_attention(q, k, v, rule, **options), recurrence(q, k, v, **last)[0], 1e-5)

    def test_options(self):
        q, k, v, decay, beta, past = self.given()
        gates = {"decay": decay[..., 0], "beta": beta}
        last = {"decay": decay[..., :1], "beta": beta[..., None]}
        run = lambda *x, **options: elsa.linear_attention(*x, rule="gated_delta", **dict(gates, **options))
        self.near(run(q, k, v, scale=0.3), recurrence(q, k, v, scale=0.3, **last)[0], 1e-5)
        self.near(run(q, 3 * k, v, normalize=1e-6), recurrence(q, k, v, normalize=1e-6, **last)[0], 1e-4)
        forward, reverse = [recurrence(q, k, v, reverse=turn, **last)[0] for turn in (False, True)]
        self.near(run(q, k, v, direction="reverse"), reverse, 1e-5)
        self.near(run(q, k, v, direction="bidirectional"), forward + reverse, 1e-5)
        state = recurrence(q, k, v, **last)[1]
        every = np.einsum("bhkv,bhtk->bhtv", state, q.astype(np.float64)) * q.shape[3] ** -0.5
        self.near(run(q, k, v, direction="non_causal"), every, 1e-5)
        # Views of [batch, tokens, heads, dim], and ranks.
        views = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v, decay[..., 0], beta)]
        out = np.full((2, 37, 4, 12), 7, np.float32).swapaxes(1, 2)
        found = elsa.linear_attention(*views[:3], rule="gated_delta", decay=views[3], beta=views[4], out=out)
        self.assertIs(found, out)
        self.near(found, forward, 1e-5)
        one = elsa.linear_attention(q[0, 0], k[0, 0], v[0, 0], present_state=True)
        for x, y in zip(one, recurrence(q[:1, :1], k[:1, :1], v[:1, :1])):
            self.near(x, y[0, 0], 1e-5)

    def test_states(self):
        q, k, v, decay, beta, past = self.given()
        whole = elsa.linear_attention(q, k, v, "gated", decay=decay, past_state=past, present_state=True)
        # In several calls, with the state in place.
        state, steps = past.copy(), []
        for t in range(q.shape[2]):
            cut = [x[:, :, t : t + 1] for x in (q, k, v, decay)]
            step, same = elsa.linear_attention(*cut[:3], rule="gated", decay=cut[3], past_state=state, present_state=state)
            self.assertIs(same, state)
            steps.append(step)
        self.near(np.concatenate(steps, 2), whole[0].astype(np.float64), 1e-5)
        self.near(state, whole[1].astype(np.float64), 1e-5)
        # A call without tokens returns the past state.
        none = elsa.linear_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], past_state=past, present_state=True)
        self.assertEqual((none[0].shape, none[1].tobytes()), ((2, 4, 0, 12), past.tobytes()))
        # Packed sequences, one of them empty, give the results that each gives on its own.
        bounds = [0, 20, 20, 37]
        past = np.repeat(past[:1], 3, 0)
        packed = elsa.linear_attention(q[:1], k[:1], v[:1], past_state=past, present_state=True, cu_seqlens=bounds)
        for at, (start, end) in enumerate(zip(bounds, bounds[1:])):
            cut = [x[:1, :, start:end] for x in (q, k, v)]
            wanted = elsa.linear_attention(*cut, past_state=past[:1], present_state=True)
            if end > start:
                self.near(packed[0][:, :, start:end], wanted[0].astype(np.float64), 1e-5)
            self.near(packed[1][at], wanted[1][0].astype(np.float64), 1e-5)

    def test_arguments(self):
        q, k, v, decay, beta, past = self.given()
        bad = elsa.ArgumentError
        for message, options in (
            ("rule: 'gate'; ", {"rule": "gate"}),
            ("direction: 'back'; ", {"direction": "back"}),
            ("form: 'scans'; ", {"form": "scans"}),
            ("gated", {"rule": "gated"}),
            ("delta", {"rule": "delta"}),
            ("decay", {"decay": decay}),
            ("decay: 2 axes; ", {"rule": "gated", "decay": decay[0, 0]}),
            ("decay: float64; ", {"rule": "gated", "decay": decay.astype(float)}),
            ("beta: 4 axes; ", {"rule": "delta", "beta": decay}),
            ("beta", {"rule": "delta", "beta": beta[:, :3]}),
            (
                "beta: another type than decay; ",
                {"rule": "gated_delta", "decay": decay, "beta": beta.astype(np.float16)},
            ),
            ("past_state: not float32; ", {"past_state": past.astype(np.float16)}),
            ("past_state", {"past_state": past[..., :5]}),
            ("past_state: 3 axes; ", {"past_state": past[0]}),
            ("present_state", {"present_state": np.empty((2, 4, 16, 16), np.float32)}),
            ("present_state: read-only; ", {"present_state": np.broadcast_to(np.float32(0), past.shape)}),
            ("past_state", {"past_state": past, "direction": "bidirectional"}),
            ("scale: 'one'; ", {"scale": "one"}),
            ("normalize", {"normalize": -1.0}),
            ("cu_seqlens: 3; ", {"cu_seqlens": 3}),
            ("q: batch 2; ", {"cu_seqlens": [0, 37]}),
            ("chunk", {"chunk": 7, "form": "chunk"}),
            ("chunk: -1; ", {"chunk": -1}),
            ("out: ", {"out": q}),
        ):
            self.refused(bad, message, q, k, v, function=elsa.linear_attention, **options)
        cut = q[:1], k[:1], v[:1]
        self.refused(bad, "cu_seqlens", *cut, function=elsa.linear_attention, cu_seqlens=[0, 20, 36])
        self.refused(bad, "k: list; ", q, [1.0], v, function=elsa.linear_attention)
        self.refused(bad, "q", q[:, :3], k, v, function=elsa.linear_attention)
        self.refused(bad, "k: ", q, k[:, :, :36], v, function=elsa.linear_attention)


class Refused(Case):
    def test_arguments(self):
        q, k, v = tensors()
        bad = elsa.ArgumentError
        add = np.zeros((9, 13), np.float32)
        table = np.zeros((35, 4), np.float32)
        for message, arguments, options in (
            ("q: list; ", ([1.0], k, v), {}),
            ("k: NoneType; ", (q, None, v), {}),
            ("q: float64; ", (q.astype(float), k, v), {}),
            ("k: another type than q; ", (q, k.astype(np.float16), v), {}),
            ("q: ndarray of >f4; ", (q.astype(">f4"), k, v), {}),
            ("v: MaskedArray of float32; allowed: an array without a mask", (q, k, np.ma.array(v)), {}),
            ("q: strides (1, 2, 8, 72); allowed: 1 along the last axis, as numpy.asc", (np.asfortranarray(q), k, v), {}),
            ("k: 3 axes, q has 4; ", (q, k[0], v), {}),
            ("q: 1 axes; ", (q[0, 0, 0], k[0, 0, 0], v[0, 0, 0]), {}),
            ("q: 5 axes; ", (q[None], k[None], v[None]), {}),
            ("k: strides ", (q, k[..., ::2], v), {}),
            ("v: strides ", (q, k, v[:, :, ::-1]), {}),
            ("k: ", (q, k[..., :8], v), {}),
            ("k: ", (q[:, :3], k[:, :2], v[:, :2]), {}),
            ("v: ", (q, k, v[:, :, :5]), {}),
            ("mask: uint16; ", (q, k, v), {"mask": np.ones((9, 13), np.uint16)}),
            ("mask: keys 6; allowed: 1 or 13", (q, k, v), {"mask": np.ones((9, 6), bool)}),
            ("bias: keys 6; allowed: 1 or 13", (q, k, v), {"bias": np.ones((9, 6), np.float32)}),
            ("mask: ", (q, k, v), {"mask": np.ones((8, 13), bool)}),
            ("mask: 5 axes; ", (q, k, v), {"mask": np.ones((1, 2, 4, 9, 13), bool)}),
            ("mask: 0 axes; ", (q, k, v), {"mask": np.ones((), bool)}),
            ("bias: bool; ", (q, k, v), {"bias": np.ones((9, 13), bool)}),
            ("bias_table: given beside bias; ", (q, k, v), {"bias": add, "bias_table": table}),
            ("bias_index: given without bias_table; ", (q, k, v), {"bias_index": np.zeros((9, 13), np.int64)}),
            ("bias_index: int32; ", (q, k, v), {"bias_table": table, "bias_index": np.zeros((9, 13), np.int32)}),
            ("bias_index", (q, k, v), {"bias_table": table, "bias_index": np.full((9, 13), 35)}),
            ("windows: ", (q, k, v), {"windows": 7}),
            ("windows", (q, k, v), {"bias_table": table, "windows": ((6, 8), (3, 4))}),
            ("causal: 'left'; ", (q, k, v), {"causal": "left"}),
            ("window: 3; ", (q, k, v), {"window": 3}),
            ("window: -2; ", (q, k, v), {"window": (-2, 1)}),
            ("scale: 'one'; ", (q, k, v), {"scale": "one"}),
            ("scale: a number of 16610 bits; ", (q, k, v), {"scale": 10**5000}),
            ("scale", (q, k, v), {"scale": float("nan")}),
            ("softcap", (q, k, v), {"softcap": -1.0}),
            ("key_lengths: ", (q, k, v), {"key_lengths": 3}),
            ("key_lengths[1]: a number of 71 bits; ", (q, k, v), {"key_lengths": [3, 2**70]}),
            ("key_lengths[0]: 18446744073709551619; ", (q, k, v), {"key_lengths": [2**64 + 3, 1]}),
            ("key_lengths[1]: 9223372036854775811; ", (q, k, v), {"key_lengths": [1, np.uint64(2**63 + 3)]}),
            ("key_lengths[0]: -1; ", (q, k, v), {"key_lengths": [-1, 1]}),
            ("key_lengths[0]: True; ", (q, k, v), {"key_lengths": [True, False]}),
            ("key_lengths[0]: 1.0; ", (q, k, v), {"key_lengths": np.array([1.0, 2.0])}),
            ("window: 18446744073709551616; ", (q, k, v), {"window": (2**64, 0)}),
            ("window: array", (q, k, v), {"window": (np.array([1, 2]), 0)}),
            ("windows: 18446744073709551622; ", (q, k, v), {"windows": ((2**64 + 6, 8), (3, 4))}),
            ("key_lengths", (q, k, v), {"key_lengths": [3]}),
            ("key_lengths", (q, k, v), {"key_lengths": [3, 14]}),
            ("out: ", (q, k, v), {"out": np.empty((2, 4, 9, 15), np.float32)}),
            ("out: another type than q; ", (q, k, v), {"out": np.empty(q.shape, np.float16)}),
            ("out: read-only; ", (q, k, v), {"out": np.broadcast_to(np.float32(0), q.shape)}),
            ("out: ", (q, k, v), {"out": q}),
        ):
            self.refused(bad, message, *arguments, **options)
        self.near(elsa.attention(q, k, v), oracle(q, k, v)[0])
        whole = ({"threads": -1}, {"threads": 1.5}, {"threads": 2**64}, {"threads": True}, {"device": 2**63})
        for options in ({"backend": "gpu"},) + whole:
            self.assertRaises(bad, elsa.Engine, **options)

    def test_a_gpu_that_is_absent(self):
        if elsa.backends()["cuda"]:
            self.skipTest("there is one")
        self.assertRaises(elsa.UnsupportedError, elsa.Engine, "cuda")


class Engines(Case):
    def test_threads_have_the_same_bits(self):
        cases = [tensors(1 + i % 3, 2, 5 + 40 * i, 9 + 11 * i, 8 * (1 + i % 4), seed=i) for i in range(6)]
        wanted = [elsa.attention(*case) for case in cases]
        faults = []

        def work(start):
            for i in range(30):
                at = (start + i) % len(cases)
                if elsa.attention(*cases[at]).tobytes() != wanted[at].tobytes():
                    faults.append((start, i))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(faults, [])

    def test_one_workspace_serves_any_sequence_of_shapes(self):
        for seed in range(12):
            random, engine = np.random.RandomState(seed), elsa.Engine(threads=2)
            for _ in range(random.randint(2, 21)):
                b, h = random.choice([1, 2, 8, 61]), random.choice([1, 2])
                nq, nk, d = random.choice([1, 2, 7, 40]), random.choice([1, 3, 50, 300]), random.choice([1, 8, 64])
                q, k, v = tensors(b, h, nq, nk, d, seed=seed)
                lengths = random.randint(0, nk + 1, b) if random.rand() < 0.5 else None
                keep = True if lengths is None else np.arange(nk) < lengths[:, None, None, None]
                found = elsa.attention(q, k, v, key_lengths=lengths, engine=engine)
                self.near(found, oracle(q, k, v, keep=keep)[0])
                q, k, v = [x[:, :, :nq] for x in tensors(b, h, nq, nq, d, seed=seed)]
                self.near(elsa.linear_attention(q, k, v, engine=engine), recurrence(q, k, v)[0])

    def test_plans_are_bounded(self):
        engine = elsa.Engine(threads=1)
        for n in range(1, elsa.MOST_PLANS + 20):
            q, k, v = tensors(1, 1, n, n, 8)
            self.near(elsa.attention(q, k, v, engine=engine), oracle(q, k, v)[0])
        self.assertEqual(len(engine._plans), elsa.MOST_PLANS)
        # A workspace made for one shape is reused for others: many sequences after many bytes, then the reverse.
        for shape in ((1, 1, 700, 700, 64), (64, 1, 3, 3, 8), (1, 1, 700, 700, 64), (8, 2, 40, 40, 32)):
            q, k, v = tensors(*shape)
            self.near(elsa.attention(q, k, v, engine=engine), oracle(q, k, v)[0])

    @unittest.skipUnless(hasattr(os, "fork"), "needs os.fork")
    def test_a_child_of_fork_computes(self):
        q, k, v = tensors(1, 2, 100, 100, 32)
        wanted = elsa.attention(q, k, v).tobytes()
        child = os.fork()
        if child == 0:
            os._exit(0 if elsa.attention(q, k, v).tobytes() == wanted else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main()
