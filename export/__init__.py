"""Preset folder in, served and searchable SavedModel out."""

import os

# The terminal is for what these commands say, not for notices of TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
