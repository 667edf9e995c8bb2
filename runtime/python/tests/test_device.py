"""elsa.py over tensors of a CUDA device, without torch: device_torch.py replaces it.

`python3 test_device.py` with elsa.py on PYTHONPATH and a driver. Python 3.6 and later.
"""

import ctypes
import gc
import os
import re
import sys
import threading
import unittest

import numpy as np

import elsa
from device_torch import call, CONTEXT, driver, Graph, Host, LOG, Pool, READY, stand_for_torch, STREAM, Tensor


def setUpModule():
    call("cuInit", 0)
    stream = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(CONTEXT), 0)
    call("cuCtxPushCurrent_v2", CONTEXT)
    call("cuStreamCreate", ctypes.byref(stream), 0)
    STREAM.cuda_stream = stream.value
    stand_for_torch()


def interpreted(function):
    """Returns whether the interpreter makes a function's call of an operator."""
    names = []
    sys.setprofile(lambda frame, event, _: event == "call" and names.append(frame.f_code.co_name))
    try:
        function()
    finally:
        sys.setprofile(None)
    return "_call" in names


def operators():
    """Yields each function with its tensors by name, its other options and the shape of its states."""
    random = np.random.RandomState(3)
    make = lambda *shape: random.standard_normal(shape).astype(np.float32)
    u, delta, z = make(2, 75, 6), make(2, 75, 6), make(2, 75, 6)
    rates, each = -np.abs(make(6, 5)), make(6)
    return (
        (elsa.recurrence, {"b": u, "a": -np.abs(delta)}, {"log": True, "parts": 3}, (2, 6)),
        (
            elsa.selective,
            {"u": u, "delta": delta, "a": rates, "b": make(2, 75, 3, 5), "c": make(2, 75, 3, 5), "d": each, "z": z,
             "delta_bias": make(6)},
            {"softplus": True},
            (2, 6, 5),
        ),
        (elsa.conv, {"u": u, "filter": make(6, 4), "bias": each}, {"order": "newest_last", "silu": True}, (2, 6, 3)),
    )  # fmt: skip


class Device(unittest.TestCase):
    def refused(self, kind, message, function, **options):
        with self.assertRaises(kind) as caught:
            function(**options)
        self.assertTrue(str(caught.exception).startswith(message), str(caught.exception))
        self.assertIn("; allowed: ", str(caught.exception))

    def test_the_bits_of_tensors_of_the_host(self):
        engine, random = elsa.Engine("cuda"), np.random.RandomState(4)
        for function, given, options, states in operators():
            past = random.standard_normal(states).astype(np.float32)
            wanted, last = function(past_state=past, present_state=True, engine=engine, **given, **options)
            cpu, _ = function(past_state=past, present_state=True, **given, **options)
            self.assertLess(np.abs(wanted - cpu).max(), 1e-4)
            for axes in ("btc", "bct"):
                turn = lambda x: np.moveaxis(x, 1, -1).copy() if axes == "bct" and x.ndim > 2 else x
                tensors = {name: Tensor(turn(x)) for name, x in given.items()}
                del STREAM.asked[:]
                state = Tensor(past)
                found, present = function(past_state=state, present_state=True, layout=axes, **tensors, **options)
                self.assertEqual(turn(wanted).tobytes(), found.numpy().tobytes())
                self.assertEqual(last.tobytes(), present.numpy().tobytes())
                self.assertEqual(past.tobytes(), state.numpy().tobytes())
                self.assertEqual(set(STREAM.asked), {0})
                del STREAM.asked[:]
                # The same call with other tensors reads these, in the stream that is then current.
                again = {name: Tensor(turn(x[..., ::-1].copy())) for name, x in given.items()}
                other = {name: x[..., ::-1].copy() for name, x in given.items()}
                found, _ = function(past_state=state, present_state=True, layout=axes, **again, **options)
                answer, _ = function(past_state=past, present_state=True, engine=engine, **other, **options)
                self.assertEqual(turn(answer).tobytes(), found.numpy().tobytes())
                self.assertEqual(STREAM.asked, [0])
                # States in place, a given output, and no past.
                out = Tensor(np.zeros_like(turn(wanted)))
                same = function(past_state=state, present_state=state, out=out, layout=axes, **tensors, **options)
                self.assertIs(same[0], out)
                self.assertIs(same[1], state)
                self.assertEqual(turn(wanted).tobytes(), out.numpy().tobytes())
                self.assertEqual(last.tobytes(), state.numpy().tobytes())
                alone = function(layout=axes, **tensors, **options)
                self.assertEqual(
                    turn(function(engine=engine, **given, **options)).tobytes(), alone.numpy().tobytes()
                )

    def test_strides_and_copies(self):
        """Tokens are read in place; tensors that must be dense are copied."""
        for function, given, options, _ in operators():
            wanted = function(engine=elsa.Engine("cuda"), **given, **options)
            tensors = {}
            for name, x in given.items():
                wide = Tensor(np.repeat(x, 2, -1))
                # Groups and their states become one axis, which must be dense in torch too.
                tensors[name] = Tensor(x) if x.ndim == 4 else wide.view(lambda array: array[..., ::2])
            found = function(**tensors, **options)
            self.assertEqual(wanted.tobytes(), found.numpy().tobytes())

    def test_no_tokens_leave_the_states(self):
        past = np.arange(12, dtype=np.float32).reshape(2, 6)
        none = Tensor(np.zeros((2, 0, 6), np.float32))
        found, state = elsa.recurrence(none, none, past_state=Tensor(past), present_state=True)
        self.assertEqual(found.shape, (2, 0, 6))
        self.assertEqual(state.numpy().tobytes(), past.tobytes())

    def test_caches_states_and_certificates(self):
        engine, random = elsa.Engine("cuda"), np.random.RandomState(5)
        q, k, v, past_k, past_v = [random.standard_normal((1, 2, n, 64)).astype(np.float32) for n in (9, 5, 5, 30, 30)]
        wanted = elsa.attention(q, k, v, past=(past_k, past_v), present=True, certify=True, engine=engine)
        given = [Tensor(x) for x in (q, k, v, past_k, past_v)]
        for _ in range(2):
            found = elsa.attention(*given[:3], past=given[3:], present=True, certify=True)
            self.assertEqual([x.numpy().tobytes() for x in found[:3]], [x.tobytes() for x in wanted[:3]])
            self.assertTrue(found[3].claims)
            self.assertEqual((found[3].bound, found[3].kernel), (wanted[3].bound, wanted[3].kernel))
        bounds = {"cu_seqlens_q": [0, 4, 9], "cu_seqlens_k": [0, 20, 30]}
        packed = elsa.attention(given[0], *given[3:], **bounds)
        self.assertEqual(
            packed.numpy().tobytes(), elsa.attention(q, past_k, past_v, engine=engine, **bounds).tobytes()
        )
        states = elsa.partial(given[0], *given[3:])
        for x, y in zip(states, elsa.partial(q, past_k, past_v, engine=engine)):
            self.assertEqual(x.numpy().tobytes(), y.tobytes())
        out = elsa.finish([x.numpy() for x in states])[0]
        self.assertLess(np.abs(out - elsa.attention(q, past_k, past_v)).max(), 1e-5)
        self.refused(elsa.UnsupportedError, "key_offset: ", lambda: elsa.partial(*given[:3], key_offset=1))
        self.refused(elsa.ArgumentError, "states[0].m: in memory of a GPU; ", lambda: elsa.merge([states]))
        for _ in range(2):
            out, left = elsa.attention(given[0], *given[3:], error_budget=0.3)
            same, wanted = elsa.attention(q, past_k, past_v, error_budget=0.3, engine=engine)
            self.assertEqual(out.numpy().tobytes(), same.tobytes())
            self.assertEqual((left.rows, left.share.is_cuda, left.share.shape), (18, False, (1, 2, 9)))
            self.assertEqual(left.share.numpy().tobytes(), wanted.share.tobytes())
        unsupported = elsa.UnsupportedError
        certify = lambda: elsa.linear_attention(*[given[0]] * 3, certify=True)
        self.refused(unsupported, "certify: given for tensors of a GPU; ", certify)
        self.refused(unsupported, "task: given for tensors of a GPU; ", lambda: elsa.task(*given[:3], chunks=7, number=0))
        differentiate = lambda: elsa.gradients(*given[:3], out=given[0], d_out=given[0], lse=given[0])
        self.refused(unsupported, "gradients: given for tensors of a GPU; ", differentiate)

    def test_half_scores(self):
        """Sums of 64 products of 40,000 are beyond the range of f16. All keys have the same score, and all values are 1."""
        large, ones = [np.full((1, 1, 128, 64), x, np.float16) for x in (200, 1)]
        given, engine = [Tensor(large), Tensor(large), Tensor(ones)], elsa.Engine("cuda")
        for half in (False, True, False):
            device = elsa.attention(*given, half_scores=half).numpy()
            for found in (elsa.attention(large, large, ones, engine=engine, half_scores=half), device):
                self.assertTrue(np.isnan(found).all() if half else (found == 1).all(), found)
        self.assertTrue((elsa.attention(large, large, ones, half_scores=True) == 1).all())
        wide = (x.astype(np.float32) for x in (large, large, ones))
        self.assertLess(np.abs(elsa.attention(*wide, half_scores=True, engine=engine) - 1).max(), 1e-5)

    def test_a_stream_within_a_budget_of_gpu_memory(self):
        random = np.random.RandomState(6)
        q, k, v = [random.standard_normal((1, n, rows, 16)).astype(np.float32) for n, rows in ((4, 300), (2, 4000), (2, 4000))]
        scores = q.astype(np.float64).reshape(1, 2, 600, 16) @ k.astype(np.float64).swapaxes(2, 3) / 4
        scores = np.where(np.tri(300, 4000, 3700, dtype=bool), scores.reshape(1, 4, 300, 4000), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = (weights / weights.sum(-1, keepdims=True)).reshape(1, 2, 600, 4000)
        wanted = (weights @ v.astype(np.float64)).reshape(q.shape)
        run = lambda out, **options: elsa.stream(q, k, v, out, 1 << 34, causal="bottom_right", eta=0.05, **options)
        with self.assertRaises(elsa.OutOfMemoryError) as caught:
            run(np.zeros_like(q), device_budget=1)
        budget = 2 * int(re.match("device_budget: 1 bytes; allowed: at least ([0-9]+)", str(caught.exception)).group(1))
        for engine in (None, elsa.Engine("cuda")):
            out = np.full_like(q, 7)
            report = run(out, device_budget=budget, engine=engine)
            self.assertLess(np.abs(out - wanted).max(), 1e-5)
            self.assertTrue(1 < report.units == report.finished and report.chunk_keys < 4000, report)
            self.assertTrue(0 < report.device_bytes <= budget and report.kernel.startswith("attention_f32"), report)

        class Fails(object):
            shape, dtype, left = q.shape, q.dtype, 1

            def __setitem__(self, box, piece):
                self.left -= 1
                if self.left < 0:
                    raise OSError("full")
                out[box] = piece

        out, sink = np.full_like(q, 7), Fails()
        with self.assertRaisesRegex(elsa.StreamError, "^out: OSError: full; ") as caught:
            run(sink, device_budget=budget)
        self.assertGreater(np.abs(out - wanted).max(), 1)
        sink.left = 1000
        caught.exception.resume()
        self.assertLess(np.abs(out - wanted).max(), 1e-5)
        self.assertEqual(run(out).device_bytes, 0)
        for kind, message, options in (
            (elsa.ArgumentError, "block: 64; ", {"block": 64, "device_budget": budget}),
            (elsa.ArgumentError, "device_budget: -1; ", {"device_budget": -1}),
            (elsa.UnsupportedError, "backend: no GPU", {"device_budget": budget, "engine": elsa.Engine("scalar")}),
        ):
            self.refused(kind, message, lambda: run(out, **options))

    def test_refused(self):
        bad = elsa.ArgumentError
        for function, given, options, states in operators():
            tensors = {name: Tensor(x) for name, x in given.items()}
            first = "b" if function is elsa.recurrence else "u"
            for name, x in given.items():
                if name != first:
                    moved = dict(tensors, **{name: Tensor(x, None)})
                    self.refused(bad, f"{name}: another device than {first}; ", function, **moved, **options)
            out, state = Tensor(given[first], 1), Tensor(np.zeros(states, np.float32), None)
            self.refused(bad, f"out: another device than {first}; ", function, out=out, **tensors, **options)
            self.refused(bad, "past_state: another device", function, past_state=state, **tensors, **options)
            self.refused(bad, "present_state: another device", function, present_state=state, **tensors, **options)
            self.refused(bad, f"{list(given)[1]}: of another library", function, **dict(given, **{first: tensors[first]}),
                         **options)  # fmt: skip
            # The library detects overlaps.
            self.refused(bad, "", function, out=tensors[first], **tensors, **options)
            # A CPU plan accepts no device tensors.
            self.refused(elsa.UnsupportedError, "", function, engine=elsa.Engine("scalar"), **tensors, **options)

    def calls(self):
        """Yields functions, each with tensors on the device as arguments, and its results as a tuple."""
        random = np.random.RandomState(5)
        q, k, v = [random.standard_normal((1, 2, 300, 64)).astype(np.float32) for _ in range(3)]
        listed = lambda found: found if isinstance(found, tuple) else (found,)
        yield (lambda q, k, v: listed(elsa.attention(q, k, v, lse=True))), [q, k, v]
        yield (lambda q, k, v: listed(elsa.attention(q, k, v, key_lengths=[217]))), [q, k, v]
        # One query, whose keys are split.
        yield (lambda q, k, v: listed(elsa.attention(q, k, v))), [q[:, :, :1], k, v]
        yield (lambda q, k, v: listed(elsa.linear_attention(q, k, v, present_state=True))), [q, k, v]
        for function, given, options, _ in operators():
            names = list(given)
            for parts in (0, 3):
                more = dict(options, present_state=True, **({"parts": parts} if function is elsa.recurrence else {}))
                yield (
                    lambda *tensors, function=function, names=names, more=more: listed(
                        function(**dict(zip(names, tensors)), **more)
                    )
                ), list(given.values())

    def test_captured_without_an_earlier_call(self):
        for function, arrays in self.calls():
            wanted = [found.numpy() for found in function(*map(Tensor, arrays))]
            # A new engine has loaded no module, planned no call and made no workspace.
            elsa._engines.clear()
            tensors = [Tensor(array) for array in arrays]
            fresh = [np.ascontiguousarray(array[..., ::-1]) for array in arrays]
            with Graph() as graph:
                first = function(*tensors)
                # What follows in the graph reuses the memory of the workspace.
                second = function(*tensors)
            del function
            self.assertGreaterEqual(graph.pool.taken, 2 * len(first) + 2)
            for given in (arrays, fresh, arrays):
                for tensor, array in zip(tensors, given):
                    tensor.write(array)
                graph.replay()
                if given is arrays:
                    for answer, found in zip(wanted * 2, first + second):
                        self.assertEqual(answer.tobytes(), found.numpy().tobytes())
                else:
                    self.assertNotEqual(wanted[0].tobytes(), first[0].numpy().tobytes())

    def test_a_graph_keeps_its_lengths(self):
        elsa._engines.clear()
        q, k, v = [Tensor(array) for array in next(self.calls())[1]]
        with Graph() as graph:
            found = elsa.attention(q, k, v, key_lengths=[7])
        gc.collect()
        # Host memory that the graph does not keep would be used again.
        others = [elsa.Engine("cuda") for _ in range(9)]
        for engine in others:
            elsa.attention(q, k, v, key_lengths=[90], engine=engine)
        graph.replay()
        self.assertEqual(found.numpy().tobytes(), elsa.attention(q, k, v, key_lengths=[7]).numpy().tobytes())

    def test_workspaces_are_tensors(self):
        elsa._engines.clear()
        gc.collect() and gc.collect()  # Finalizers leave objects to the second collection.
        q, k, v = [Tensor(np.ones((1, 2, 300, 64), np.float32)) for _ in range(3)]
        outs = [Tensor(np.zeros((1, 2, 300, 64), np.float32)) for _ in range(2)]
        before = Pool.bytes
        elsa.linear_attention(q, k, v, out=outs[0])
        plan, = elsa._engine_for(0)._plans.values()
        self.assertGreater(plan.bytes, 0)
        self.assertEqual(Pool.bytes, before + plan.bytes)
        elsa.linear_attention(q, k, v, out=outs[1])
        self.assertEqual(Pool.bytes, before + plan.bytes)
        # Another stream has a workspace of its own.
        first, other = STREAM.cuda_stream, ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(other), 1)
        STREAM.cuda_stream = other.value
        try:
            elsa.linear_attention(q, k, v, out=outs[1])
            self.assertEqual(Pool.bytes, before + 2 * plan.bytes)
            self.assertEqual(outs[1].numpy().tobytes(), outs[0].numpy().tobytes())
            with Graph() as graph:
                elsa.linear_attention(q, k, v, out=outs[1])
                self.assertEqual(Pool.bytes, before + 2 * plan.bytes)
            self.assertEqual(graph.pool.taken, 1)
        finally:
            STREAM.cuda_stream = first
        # So has another thread, which frees it when it ends.
        def work():
            call("cuCtxPushCurrent_v2", CONTEXT)
            elsa.linear_attention(q, k, v, out=outs[1])
            answers.append(Pool.bytes)

        answers, thread = [], threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(answers, [before + 3 * plan.bytes])
        self.assertEqual(Pool.bytes, before + 2 * plan.bytes)
        elsa._engines.clear()
        del plan
        gc.collect()
        self.assertEqual(Pool.bytes, before)

    @unittest.skipUnless(os.environ.get("ELSA_STANDIN"), "NVIDIA's driver counts no calls")
    def test_work_in_a_workspace_follows_that_of_other_streams(self):
        q, k, v, out = [Tensor(np.ones((1, 2, 300, 64), np.float32)) for _ in range(4)]
        engine, other = elsa.Engine("cuda"), STREAM.cuda_stream
        elsa.linear_attention(q, k, v, out=out, engine=engine)
        prepared, = engine._local.prepared.values()
        plan, workspace, structs = prepared.plan.handle, prepared.place.workspace.handle, prepared.structs
        # Only the default stream, 1, keeps its handle, so that earlier work in it needs no event.
        for stream, waits in ((1, True), (1, False), (other, True), (other, True), (1, True), (1, False)):
            with open(LOG.name) as log:
                log.seek(0, os.SEEK_END)
                elsa._check(prepared.run_device(plan, workspace, *structs, stream, None))
                self.assertEqual(any(line.startswith("cuStreamWaitEvent ") for line in log), waits)

    @unittest.skipUnless(elsa._calls, "without _elsa")
    def test_the_compiled_module_asks_the_driver_about_captures(self):
        """The driver's answer counts, and not that of torch's function."""
        q, k, v, out = [Tensor(np.ones((1, 2, 30, 64), np.float32)) for _ in range(4)]
        stream, graph = ctypes.c_void_p(STREAM.cuda_stream), ctypes.c_void_p()

        def passed_on():
            return interpreted(lambda: elsa.attention(q, k, v, out=out))

        elsa.attention(q, k, v, out=out)
        STREAM.captured = True
        try:
            self.assertFalse(passed_on())
            call("cuStreamBeginCapture_v2", stream, 0)
            self.assertTrue(passed_on())
        finally:
            STREAM.captured = False
            driver.cuStreamEndCapture(stream, ctypes.byref(graph))
        self.assertFalse(passed_on())

    @unittest.skipUnless(os.environ.get("ELSA_STANDIN"), "NVIDIA's driver counts no calls")
    def test_what_a_repeated_call_asks_of_the_driver(self):
        """It allocates nothing, plans nothing, waits for nothing, and asks nothing about tensors. In the default stream it
        makes four calls in addition to its launches; the compiled module adds one."""
        allowed = {
            "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamGetCaptureInfo", "cuLaunchKernel", "cuEventRecord"
        }  # fmt: skip
        added = {"cuStreamIsCapturing"} if elsa._calls else set()
        allowed |= added
        # Another stream than the default one might be of another context, or destroyed.
        streams = (0, allowed), (STREAM.cuda_stream, allowed | {"cuStreamGetCtx", "cuStreamWaitEvent"})
        copies = {"cuMemcpyHtoDAsync_v2", "cuEventSynchronize", "cuThreadExchangeStreamCaptureMode"}
        made, plan = [], elsa._Plan.__init__
        elsa._Plan.__init__ = lambda *given: made.append(given) or plan(*given)
        try:
            for STREAM.cuda_stream, permitted in streams:
                for function, arrays in self.calls():
                    tensors = [Tensor(array) for array in arrays]
                    # The repeated calls get the outputs of earlier calls, so that no tensor is made.
                    READY[:] = [found for _ in range(3) for found in function(*tensors)]
                    kept = []
                    del made[:]
                    with open(LOG.name) as log:
                        log.seek(0, os.SEEK_END)
                        kept = function(*tensors)
                        asked = [line.split()[0] for line in log]
                    by_interpreter = interpreted(lambda: function(*tensors))
                    self.assertEqual(made, [])
                    self.assertIn("cuLaunchKernel", asked)
                    # Lengths are copied to the device, after the previous copy.
                    lengths = copies if "cuMemcpyHtoDAsync_v2" in asked else set()
                    self.assertLessEqual(set(asked), permitted | lengths)
                    if STREAM.cuda_stream == 0 and not lengths:
                        self.assertEqual(len(asked) - asked.count("cuLaunchKernel"), 4 + len(added))
                    # The compiled module makes the calls of `_call`, except those with lengths.
                    self.assertEqual(by_interpreter, elsa._calls is None or lengths != set())
                    self.assertEqual(len(READY), len(kept))
                    del READY[:]
        finally:
            elsa._Plan.__init__ = plan


if __name__ == "__main__":
    unittest.main()
