"""Worker processes that have TensorFlow, for one that has not."""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator

# Of each worker: the graph tokenizes beside the Python that cuts and writes.
THREADS = 2


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[concurrent.futures.Executor]:
    """Yields a pool of processes, which start when there is work for them.

    Args:
        workers: How many; each has about a gigabyte of memory.

    Raises:
        ChildProcessError: A worker was killed.
    """
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        # Holds no threads or memory of this process.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
    )
    try:
        yield pool
    except concurrent.futures.BrokenExecutor as error:
        raise ChildProcessError(
            "a worker process was killed, perhaps for want of memory; "
            f"--workers sets how many there are (now {workers})"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start():
    # Ctrl-C is for the parent, which then stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)


def _leave_with_parent():
    """A worker whose parent was killed would wait for work forever."""
    parent = multiprocessing.parent_process()
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
