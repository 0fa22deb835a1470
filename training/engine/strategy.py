"""The `tf.distribute` strategies, by name, and how they share data."""

import functools
import json
import os
import signal
import socket
import sys
import time
import typing
from collections.abc import Callable, Collection, Iterable

import keras
import tensorflow as tf

from keras_fixedhead.argument_checks import one_of
from training.engine.cli import WorkerLost
from training.engine.configs import StrategyName

_POLL_INTERVAL = 0.2  # seconds
_FIRST_REMINDER = 2.0
_REMINDER_INTERVAL = 60.0


# Collective operations of two strategies over the same devices would have the
# same keys, which TensorFlow refuses, so a process makes each strategy once.
@functools.cache
def get_strategy(name: StrategyName) -> tf.distribute.Strategy:
    """Returns a strategy over the GPUs of this process, or else its CPUs."""
    if name == "multi_worker":
        return _multi_worker_strategy()
    if name == "tpu":
        return _tpu_strategy()
    one_of("strategy", name, typing.get_args(StrategyName))
    list_devices = tf.config.list_logical_devices
    devices = [d.name for d in list_devices("GPU") or list_devices("CPU")]
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.OneDeviceStrategy(devices[0])


def worker_number(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Returns the index of this worker and the number of workers.

    The first one, the chief, writes what a run keeps.
    """
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or resolver.task_type not in ("chief", "worker"):
        return 0, 1
    jobs = resolver.cluster_spec().as_dict()
    chiefs = len(jobs.get("chief", ()))
    before = chiefs if resolver.task_type == "worker" else 0
    # The resolver of a TPU may list no workers.
    count = max(chiefs + len(jobs.get("worker", ())), 1)
    return before + (resolver.task_id or 0), count


def replica_batch_size(global_batch_size: int, num_replicas: int) -> int:
    """Returns each replica's share of a global batch."""
    if global_batch_size < 1 or global_batch_size % num_replicas:
        raise ValueError(
            "`global_batch_size` must be a positive multiple of the "
            f"{num_replicas} replicas of the strategy. Received: "
            f"{global_batch_size}"
        )
    return global_batch_size // num_replicas


def draw_for_each_replica(model: keras.layers.Layer) -> None:
    """Gives each replica its own draws: Keras would drop the same values."""
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            generator.next = functools.partial(_next_seed, generator.next)


def distribute(
    strategy: tf.distribute.Strategy,
    make_dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset],
) -> Iterable:
    """Distributes the datasets, of one replica's batches, of each worker."""
    # The iterator of a dataset that tunes itself can wait at its end for the
    # tuning thread, up to a minute.
    options = tf.data.Options()
    options.autotune.enabled = False

    def dataset(context):
        return make_dataset(context).with_options(options)

    if isinstance(strategy, tf.distribute.OneDeviceStrategy):
        # There is nothing to distribute, and the iterators of distributed
        # datasets tune in spite of the options.
        return dataset(tf.distribute.InputContext())
    return strategy.distribute_datasets_from_function(dataset)


def _next_seed(next_seed, ordered=True):
    replica = tf.distribute.get_replica_context()
    # While a model is built there are no replicas, and no draws.
    number = replica.replica_id_in_sync_group if replica else 0
    return tf.random.fold_in(next_seed(ordered), number)


def _multi_worker_strategy():
    wait_for_workers(*_read_tf_config(os.environ.get("TF_CONFIG", "")))
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.OpError as error:
        raise WorkerLost(
            f"the workers lost each other as they began ({error.message}); "
            "the same command on every worker tries again"
        ) from error
    finally:
        # TensorFlow has installed its own handler of SIGTERM.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _read_tf_config(text):
    """Returns the addresses of all workers, and of this one."""
    try:
        config = json.loads(text)
        task, cluster = config["task"], config["cluster"]
        addresses = [*cluster.get("chief", []), *cluster.get("worker", [])]
        if not all(0 < _split(address)[1] < 2**16 for address in addresses):
            raise ValueError("a port is not between 1 and 65535")
        return addresses, cluster[task["type"]][task["index"]]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            "`strategy='multi_worker'` needs TF_CONFIG, on every worker, of "
            'the form {"cluster": {"worker": ["host:port", ...]}, "task": '
            f'{{"type": "worker", "index": 0}}}}. Received: {text!r}'
        ) from error


def _tpu_strategy():
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"`strategy='tpu'` found no TPU attached to this machine: {error}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def wait_for_workers(addresses: Collection[str], own: str) -> None:
    """Listens at `own` until each worker has, and prints which are missing.

    TensorFlow waits silently, and only SIGKILL ends its wait.
    """
    missing = {address for address in addresses if address != own}
    ipv6 = socket.has_dualstack_ipv6()
    with socket.create_server(
        ("", _split(own)[1]),
        family=socket.AF_INET6 if ipv6 else socket.AF_INET,
        dualstack_ipv6=ipv6,
    ):
        # Workers usually start together, within the first reminder.
        reminder = time.monotonic() + _FIRST_REMINDER
        while missing := {a for a in missing if not _is_there(a)}:
            if time.monotonic() > reminder:
                print(
                    f"waiting for worker {', '.join(sorted(missing))}",
                    file=sys.stderr,
                    flush=True,
                )
                reminder = time.monotonic() + _REMINDER_INTERVAL
            time.sleep(_POLL_INTERVAL)


def _is_there(address):
    try:
        socket.create_connection(_split(address), timeout=1).close()
    except OSError:  # the worker, or its name, may appear later
        return False
    return True


def _split(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
