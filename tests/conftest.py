"""What every test shares: quiet libraries and a fixed seed."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import pytest


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)
