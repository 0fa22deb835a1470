"""How fast the devices of a run can be at best."""

import re
import time

import tensorflow as tf

# Peak of dense products in bfloat16 (float16 on the T4 and the V100), in
# operations a second, without sparsity, from NVIDIA's data sheets.
_PEAK_FLOPS = {
    "A100": 312e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "L4": 121e12,
    "T4": 65e12,
    "V100": 125e12,
}


def peak_flops(dtype: str) -> float | None:
    """The most operations a second that one device of this process can do.

    Of a GPU in float32 it is still the peak in bfloat16, so that utilization
    says what the hardware could have given. Of a CPU it is measured, by a
    large product of matrices.

    Args:
        dtype: Name of the dtype that the run computes in.

    Returns:
        Operations a second, a multiplication with its addition as two; `None`
        for a device that is not known.
    """
    if tf.config.list_logical_devices("TPU"):
        return None
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return _measured(dtype)
    details = tf.config.experimental.get_device_details(gpus[0])
    return _of_gpu(details.get("device_name", ""))


def _of_gpu(device_name):
    """The first of the table that is in a name such as `NVIDIA L4`."""
    peaks = (
        peak
        for name, peak in _PEAK_FLOPS.items()
        # As a word: an L40S is no L4.
        if re.search(rf"\b{name}\b", device_name)
    )
    return next(peaks, None)


def _measured(dtype, size=1024, repeats=8):
    left = tf.random.stateless_normal([size, size], seed=[0, 0])
    left = tf.cast(left, dtype)
    product = tf.function(lambda: tf.linalg.matmul(left, left))
    product()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - start)
    devices = len(tf.config.list_logical_devices("CPU"))
    return 2 * size**3 / best / devices
