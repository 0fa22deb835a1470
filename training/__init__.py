"""Text to a trained preset folder: data, the training loop, its verbs."""

import os

# As in keras_fixedhead, which some modules import after TensorFlow.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
