"""Calls of elsa.py that are ended early: by Ctrl-C, and by Engine.cancel.

`python3 test_interrupts.py` with elsa.py on PYTHONPATH. Python 3.6 and later.
"""

import os
import signal
import threading
import time
import unittest

import numpy as np

import elsa

from test_elsa import SCALAR, oracle


class Interrupts(unittest.TestCase):
    """An exception of a signal handler ends a long call, and no later call."""

    def setUp(self):
        # A shell starts background processes with SIGINT ignored.
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(self, engine, out, call):
        """Sends SIGINT when the first element of `out` has been written. Returns whether a call was cut short. On a busy
        machine the signal may come after the last element, so the call is repeated up to five times."""
        return any(self.interrupted_once(engine, out, call) for _ in range(5))

    def interrupted_once(self, engine, out, call):
        out.fill(np.nan)
        first, last = out.reshape(-1)[:1], out.reshape(-1)[-1:]

        def send():
            while np.isnan(first[0]):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        with self.assertRaises(KeyboardInterrupt):
            call()
            # The call may end before the signal arrives.
            sender.join()
        sender.join()
        return bool(np.isnan(last[0]))

    def test_a_long_call_ends_and_the_next_one_computes(self):
        engine = elsa.Engine("scalar", threads=1)
        random = np.random.RandomState(3)
        q = random.standard_normal((1, 16, 4000, 32)).astype(np.float32)
        small = q[:, :, :64]
        want = elsa.attention(small, small, small, engine=engine)
        out = np.empty_like(q)
        self.assertTrue(self.interrupted(engine, out, lambda: elsa.attention(q, q, q, out=out, engine=engine)))
        long = [plan.long for plan in engine._plans.values()]
        self.assertEqual(long, [False, True])
        again = elsa.attention(small, small, small, engine=engine)
        self.assertTrue((again == want).all())
        linear = np.empty((1, 16, 60000, 16), np.float32)
        x = random.standard_normal(linear.shape).astype(np.float32) * 0.01
        call = lambda: elsa.linear_attention(x, x, x, out=linear, engine=engine)
        self.assertTrue(self.interrupted(engine, linear, call))

    def test_a_cancel_ends_calls_of_other_threads_and_no_later_one(self):
        engine = elsa.Engine("scalar", threads=1)
        q = np.random.RandomState(4).standard_normal((1, 16, 1500, 32)).astype(np.float32)
        out, found = np.full_like(q, np.nan), []

        def call():
            try:
                elsa.attention(q, q, q, out=out, engine=engine)
            except elsa.ElsaError as error:
                found.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        while np.isnan(out[0, 0, 0, 0]):
            time.sleep(0.001)
        engine.cancel()
        caller.join()
        self.assertIsInstance(found[0], elsa.CancelledError)
        self.assertIn("cancelled", str(found[0]))
        engine.cancel()
        small = q[:, :, :9]
        np.testing.assert_allclose(elsa.attention(small, small, small, engine=engine), oracle(small, small, small)[0], atol=1e-5)

    def test_what_a_long_call_refuses_is_raised_where_it_was_called(self):
        def refused():
            raise elsa.ArgumentError("q: no")

        with self.assertRaisesRegex(elsa.ArgumentError, "q: no"):
            elsa._run_long(SCALAR._handle, refused, None)


if __name__ == "__main__":
    unittest.main()
