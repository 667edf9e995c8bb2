"""recurrence, selective and conv of elsa.py over tensors of a CUDA device, without torch: a module replaces the parts of
torch that elsa.py uses, and its tensors are in memory that the driver allocates. That is NVIDIA's driver or the
stand-in.

`python3 test_device.py` with elsa.py on PYTHONPATH and a driver. Python 3.6 and later.
"""

import collections
import ctypes
import sys
import types
import unittest

import numpy as np

import elsa

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(driver, name)(*arguments)
    if status:
        raise OSError(f"{name}: {status}")


Place = collections.namedtuple("Place", "type index")


class Tensor(object):
    """Device memory with a shape and strides, or host memory for `device` None."""

    layout, is_quantized, requires_grad = "strided", False, False

    def __init__(self, array, device=0, whole=None):
        # Device elements are copied to this array when they are requested.
        self.array, self.place, self.whole = np.array(array) if whole is None else array, device, whole
        self.shape, self.dtype = self.array.shape, f"torch.{self.array.dtype}"
        self.is_cuda, self.device = device is not None, Place("cpu" if device is None else "cuda", device)
        if whole is None:
            self.address = ctypes.c_uint64()
            call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(self.array.nbytes, 1)))
            self.write(self.array)

    def stride(self):
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def data_ptr(self):
        return (self.whole or self).address.value + (self.array.ctypes.data - (self.whole or self).array.ctypes.data)

    def view(self, of):
        """Returns the elements that `of` selects from an array, in place."""
        return Tensor(of(self.array), self.place, self.whole or self)

    def reshape(self, shape):
        return self.view(lambda array: array.reshape(shape))

    def contiguous(self):
        return self if self.array.flags.c_contiguous else Tensor(self.numpy().copy(), self.place)

    def write(self, array):
        assert self.whole is None
        array = np.ascontiguousarray(array)
        call("cuMemcpyHtoD_v2", self.address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def numpy(self):
        """Returns the content of the device memory."""
        owner = self.whole or self
        call("cuStreamSynchronize", ctypes.c_void_p(STREAM.cuda_stream))
        call("cuMemcpyDtoH_v2", ctypes.c_void_p(owner.array.ctypes.data), owner.address, ctypes.c_size_t(owner.array.nbytes))
        return self.array.copy()

    def __del__(self):
        if self.whole is None and hasattr(self, "address"):
            driver.cuMemFree_v2(self.address)


class STREAM(object):
    """Replaces torch's current stream, and records the devices for which it was requested."""

    cuda_stream, asked, captured = 0, [], False


def current_stream(device):
    STREAM.asked.append(device)
    return STREAM


def stand_for_torch():
    torch = types.ModuleType("torch")
    torch.Tensor, torch.strided = Tensor, "strided"
    torch.float32, torch.float16 = "torch.float32", "torch.float16"
    torch.empty_strided = lambda shape, strides, dtype, device: Tensor(
        np.full(shape, 7, dtype.replace("torch.", "")), device.index
    )
    torch.is_grad_enabled = lambda: True
    torch.jit = types.SimpleNamespace(is_tracing=lambda: False)
    torch.cuda = types.SimpleNamespace(
        current_stream=current_stream, is_current_stream_capturing=lambda: STREAM.captured
    )
    sys.modules["torch"] = torch


def setUpModule():
    call("cuInit", 0)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxPushCurrent_v2", context)
    call("cuStreamCreate", ctypes.byref(stream), 0)
    STREAM.cuda_stream = stream.value
    stand_for_torch()


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
                self.assertEqual(STREAM.asked, [0])
                # The same call with other tensors reads these, in the stream that is then current.
                again = {name: Tensor(turn(x[..., ::-1].copy())) for name, x in given.items()}
                other = {name: x[..., ::-1].copy() for name, x in given.items()}
                found, _ = function(past_state=state, present_state=True, layout=axes, **again, **options)
                answer, _ = function(past_state=past, present_state=True, engine=engine, **other, **options)
                self.assertEqual(turn(answer).tobytes(), found.numpy().tobytes())
                self.assertEqual(STREAM.asked, [0, 0])
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
            # A captured call was made before.
            wanted = function(**tensors, **options).numpy()
            STREAM.captured = True
            try:
                self.assertEqual(function(**tensors, **options).numpy().tobytes(), wanted.tobytes())
                fresh = {name: Tensor(x[:, :9] if x.ndim > 2 else x) for name, x in given.items()}
                captured = f"{first}: captured as a CUDA graph; "
                self.refused(elsa.UnsupportedError, captured, function, **fresh, **options)
            finally:
                STREAM.captured = False


if __name__ == "__main__":
    unittest.main()
