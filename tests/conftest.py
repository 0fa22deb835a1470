"""What every test shares: quiet libraries and a fixed seed."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# As keras_fixedhead sets it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import pytest

# These begin, so that no worker is left alone with one of them in the end.
_LONGEST = ("test_two_replicas.py", "test_finetune.py", "test_distill.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in _LONGEST)


def optimize_graphs(whether):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": not whether}
        )


# Most tests run a graph once or twice: to optimize it takes longer.
optimize_graphs(False)


@pytest.fixture(scope="module")
def optimized_graphs():
    """For what is compared to the last bit with another process."""
    optimize_graphs(True)
    yield
    optimize_graphs(False)


@pytest.fixture(scope="module", autouse=True)
def freeze_what_is_left():
    """TensorFlow keeps graphs, which each collection would look through."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    import matplotlib.figure

    figures = []
    save = matplotlib.figure.Figure.savefig

    def look(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", look)
    return figures


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)
