"""The `tf.distribute` strategies a run can ask for by name."""

import functools
import json
import os
import signal

import tensorflow as tf

from training.engine.errors import WorkerLost
from training.engine.rendezvous import wait_for_workers

STRATEGIES = ("one_device", "mirrored", "multi_worker", "tpu")


# Two strategies over the same devices would give their collective operations
# the same keys, which TensorFlow refuses: one of each a process.
@functools.cache
def get_strategy(name: str) -> tf.distribute.Strategy:
    """Returns the strategy called `name`, over the devices of this process.

    - `"one_device"`: the first GPU, or the CPU where there is none.
    - `"mirrored"`: every GPU of this machine, or every logical CPU device
      where there is none.
    - `"multi_worker"`: the workers that the environment variable `TF_CONFIG`
      lists; call it before any other TensorFlow operation.
    - `"tpu"`: the TPU that this machine is attached to.

    Raises:
        ValueError: `name` is none of these, `TF_CONFIG` is missing or not
            valid, or there is no TPU.
        OSError: Something else listens at the address of this worker.
        training.engine.errors.WorkerLost: Another worker went away again.
    """
    if name == "one_device":
        gpus = tf.config.list_logical_devices("GPU")
        return tf.distribute.OneDeviceStrategy("gpu:0" if gpus else "cpu:0")
    if name == "mirrored":
        devices = tf.config.list_logical_devices(
            "GPU"
        ) or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([d.name for d in devices])
    if name == "multi_worker":
        return _multi_worker_strategy()
    if name == "tpu":
        return _tpu_strategy()
    raise ValueError(
        f"`strategy` must be one of {', '.join(STRATEGIES)}. Received: {name!r}"
    )


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes what a run keeps (one process of all)."""
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or resolver.task_type in (None, "", "chief"):
        return True
    if "chief" in resolver.cluster_spec().jobs:
        return False
    return resolver.task_id == 0


def worker_number(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Which of the workers this process is, from 0 on, and of how many."""
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or resolver.task_type not in ("chief", "worker"):
        return 0, 1
    jobs = resolver.cluster_spec().as_dict()
    chiefs = len(jobs.get("chief", ()))
    before = chiefs if resolver.task_type == "worker" else 0
    # A TPU's resolver may know of no workers.
    count = max(chiefs + len(jobs.get("worker", ())), 1)
    return before + (resolver.task_id or 0), count


def replica_batch_size(global_batch_size: int, num_replicas: int) -> int:
    """Returns each replica's share of a global batch.

    Raises:
        ValueError: The batch does not divide over the replicas.
    """
    if global_batch_size < 1 or global_batch_size % num_replicas:
        raise ValueError(
            "`global_batch_size` must be a positive multiple of the "
            f"{num_replicas} replicas of the strategy. Received: "
            f"{global_batch_size}"
        )
    return global_batch_size // num_replicas


def draw_for_each_replica(model):
    """Gives each replica random draws, such as dropout's, of its own.

    The state of Keras's seed generators is the same on all replicas, which
    would all drop the same activations.

    Args:
        model: A built Keras model or layer.
    """
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            generator.next = functools.partial(_next_seed, generator.next)


def distribute(strategy, make_dataset):
    """Distributes what a function makes of each worker's `InputContext`.

    Args:
        strategy: `tf.distribute.Strategy`.
        make_dataset: Function of a `tf.distribute.InputContext`, returns the
            batches of a replica.
    """
    # tf.data's tuning of its own threads is switched off: a tuning thread can
    # miss the end of its iterator, which then waits for it, up to a minute.
    options = tf.data.Options()
    options.autotune.enabled = False

    def dataset(context):
        return make_dataset(context).with_options(options)

    if isinstance(strategy, tf.distribute.OneDeviceStrategy):
        # Nothing to distribute; iterators that bring data to devices tune
        # whatever the options are.
        return dataset(tf.distribute.InputContext())
    return strategy.distribute_datasets_from_function(dataset)


def _next_seed(next_seed, ordered=True):
    replica = tf.distribute.get_replica_context()
    # Before there are replicas, when a model is built, nothing is drawn.
    number = replica.replica_id_in_sync_group if replica else 0
    return tf.random.fold_in(next_seed(ordered), number)


def _multi_worker_strategy():
    addresses, own = _read_tf_config(os.environ.get("TF_CONFIG"))
    wait_for_workers(addresses, own)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.OpError as error:
        raise WorkerLost(
            f"the workers lost each other as they began ({error.message}); "
            "the same command on every worker tries again"
        ) from error
    finally:
        # TensorFlow has made itself the one that SIGTERM is for.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _read_tf_config(text):
    """The addresses of all workers, and this one's."""
    wanted = (
        '{"cluster": {"worker": ["host:port", ...]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    if not text:
        raise ValueError(
            "`strategy='multi_worker'` needs the environment variable "
            f"TF_CONFIG on every worker, of the form {wanted}"
        )
    try:
        config = json.loads(text)
        task, cluster = config["task"], config["cluster"]
        addresses = [
            *cluster.get("chief", []),
            *cluster.get("worker", []),
        ]
        for address in addresses:
            if not 0 < int(address.rpartition(":")[2]) < 2**16:
                raise ValueError(address)
        return addresses, cluster[task["type"]][task["index"]]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"TF_CONFIG must be of the form {wanted}, its task one of its "
            f"cluster's. Received: {text}"
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
