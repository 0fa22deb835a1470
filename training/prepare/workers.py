"""Worker processes, which import TensorFlow when they start."""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator

# Of a worker: the graph tokenizes while Python cuts and writes.
THREADS = 2


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[concurrent.futures.Executor]:
    """Yields a pool of processes, each of about a gigabyte."""
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        # Inherits no threads or memory of this process.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
    )
    try:
        yield pool
    except concurrent.futures.BrokenExecutor as error:
        raise ChildProcessError(
            "a worker process was killed, perhaps because memory ran out; "
            f"--workers sets how many there are (now {workers})"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start():
    # Ctrl-C is for the parent, which then stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # After the above, as it takes seconds.
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)


def _exit_with_parent():
    # A worker whose parent was killed would wait for work forever.
    parent = multiprocessing.parent_process()
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
