"""Preset folder in, served and searchable SavedModel out."""

import os

# The terminal is for what these commands say, not for TensorFlow's notices.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# As in keras_fixedhead, which some modules import after TensorFlow.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
