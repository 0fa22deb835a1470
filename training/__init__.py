"""Turns text into a trained preset folder: data, training loop, commands."""

import os

# keras_fixedhead sets it, too, but some modules import TensorFlow first.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
