"""Calls of elsa.py on the threads of an OpenMP library that the process has loaded.

`python3 test_threads.py` with elsa.py on PYTHONPATH. Python 3.6 and later.
"""

import ctypes
import os
import threading
import time
import unittest

import numpy as np

import elsa

from test_elsa import oracle

try:
    # GCC's library; numpy does not load it.
    LIBRARY = ctypes.CDLL("libgomp.so.1")
except OSError:
    LIBRARY = None


def running():
    """Returns the number of threads of the process."""
    return len(os.listdir("/proc/self/task"))


class Refused(unittest.TestCase):
    def refused(self, kind, message, **options):
        with self.assertRaises(kind) as caught:
            elsa.Engine("scalar", **options)
        self.assertTrue(str(caught.exception).startswith(message), str(caught.exception))
        self.assertIn("; allowed: ", str(caught.exception))

    def test_other_hosts_and_absent_libraries(self):
        for host in ("OpenMP", "tbb", 1, True):
            self.refused(elsa.ArgumentError, f"host: {host!r}", host=host)
        loaded, elsa._loaded = elsa._loaded, lambda: ["/nowhere/libgomp.so.1", "libc.so.6"]
        try:
            self.refused(elsa.UnsupportedError, "host: 'openmp'", host="openmp")
        finally:
            elsa._loaded = loaded


@unittest.skipIf(elsa._calls is None or LIBRARY is None, "needs _elsa and libgomp.so.1")
class OpenMp(unittest.TestCase):
    def setUp(self):
        random = np.random.RandomState(5)
        self.tensors = [random.standard_normal((2, 5, 300, 24)).astype(np.float32) for _ in range(3)]
        self.one = elsa.Engine("scalar", threads=1)

    def test_the_bits_of_one_thread_on_threads_of_the_library(self):
        want = elsa.attention(*self.tensors, engine=self.one)
        self.assertLess(np.abs(want - oracle(*self.tensors)[0]).max(), 1e-5)
        others = None
        for threads in (2, 7, 2, 5, 5):
            engine = elsa.Engine("scalar", threads=threads, host="openmp")
            self.assertEqual(engine.threads, threads)
            for _ in range(3):
                out = elsa.attention(*self.tensors, engine=engine)
                self.assertEqual(out.tobytes(), want.tobytes())
            # The library's team stays for its next loop, unless that has a smaller one. The engine has no thread.
            others = running() + 1 - threads if others is None else others
            limit = time.monotonic() + 20
            while running() != others + threads - 1 and time.monotonic() < limit:
                time.sleep(0.01)
            self.assertEqual(running(), others + threads - 1)

    def test_as_many_threads_as_the_library_uses(self):
        before = LIBRARY.omp_get_max_threads()
        LIBRARY.omp_set_num_threads(3)
        try:
            self.assertEqual(elsa.Engine("scalar", host="openmp").threads, 3)
        finally:
            LIBRARY.omp_set_num_threads(before)

    def test_teams_smaller_than_asked(self):
        """Shares without a thread of their own are computed, too."""
        want = elsa.attention(*self.tensors, engine=self.one)
        engine = elsa.Engine("scalar", threads=6, host="openmp")
        inside, body = [], ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        # A loop inside a loop of one level has a team of one thread.
        work = body(lambda _: inside.append(elsa.attention(*self.tensors, engine=engine)))
        levels = LIBRARY.omp_get_max_active_levels()
        LIBRARY.omp_set_max_active_levels(1)
        try:
            LIBRARY.GOMP_parallel(work, None, 2, 0)
        finally:
            LIBRARY.omp_set_max_active_levels(levels)
        self.assertEqual([out.tobytes() for out in inside], [want.tobytes()] * 2)

    def test_callers_in_several_threads_and_a_forked_child(self):
        want = elsa.attention(*self.tensors, engine=self.one).tobytes()
        engine, found = elsa.Engine("scalar", threads=3, host="openmp"), []
        compute = lambda: found.append(elsa.attention(*self.tensors, engine=engine).tobytes())
        callers = [threading.Thread(target=compute) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        self.assertEqual(found, [want] * 4)
        child = os.fork()
        if child == 0:
            # The child has one thread, so the library's team would never meet.
            same = elsa.attention(*self.tensors, engine=engine).tobytes() == want
            os._exit(0 if same else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main()
