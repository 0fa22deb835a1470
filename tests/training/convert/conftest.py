"""Sources that several modules of tests read, and the verb."""

import numpy as np
import pytest

from tests.keras_fixedhead import hugging_face
from tests.training.convert import tensorflow_berts
from tests.training.convert.texts import TEXTS
from training.convert.__main__ import main


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A checkpoint as pre-training leaves it, with the optimizer's part."""
    tensors = tensorflow_berts.original_tensors()
    slots = {
        f"{name}/{slot}": tensor + 1
        for name, tensor in tensors.items()
        for slot in ("adam_m", "adam_v")
    }
    return tensorflow_berts.write_original(
        tmp_path_factory.mktemp("original"),
        {**tensors, **slots, "global_step": np.int64(31)},
    )


@pytest.fixture(scope="session")
def official_checkpoint(original, tmp_path_factory):
    """What tf-models-official makes of the original: an encoder."""
    return tensorflow_berts.convert(
        tmp_path_factory.mktemp("encoder"), original, "encoder"
    )


@pytest.fixture(scope="session")
def sentence_transformer(tmp_path_factory):
    folder = hugging_face.write_model(
        tmp_path_factory.mktemp("theirs"),
        tensors=hugging_face.make_tensors(heads=True),
    )
    hugging_face.write_modules(
        folder,
        {"pooling_mode": "mean"},
        sentence_bert_config={"max_seq_length": 13},
        config_sentence_transformers={
            "prompts": {"query": "a "},
            "default_prompt_name": "query",
        },
    )
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path, texts, capsys):
    """Runs the verb, into `tmp_path / "out"`; what it says."""

    def run(source, *flags, status=0):
        arguments = ["--source", str(source), "--output", str(tmp_path / "out")]
        found = main([*arguments, "--texts", str(texts), *flags])
        said = capsys.readouterr().err
        assert found == status, said
        if status:
            assert not list(tmp_path.glob("*out*"))
        return said

    return run
