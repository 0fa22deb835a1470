"""What can be exported, and what is refused with what message."""

import keras
import pytest

import keras_fixedhead
from export import load
from tests.export import tiny


@pytest.fixture(scope="module")
def keras_file(embedder, tmp_path_factory):
    file = tmp_path_factory.mktemp("keras") / "embedder.keras"
    embedder.save(file)
    return file


@pytest.mark.parametrize(
    ("options", "dtype", "size"),
    [
        ({}, "float32", 13),
        ({"dtype": "bfloat16"}, "bfloat16", 13),
        ({"dtype": "int8", "embedding_dim": 5}, "int8", 5),
    ],
)
@pytest.mark.parametrize("source", ["preset", "keras_file"])
def test_options(request, source, options, dtype, size):
    service = load.load(request.getfixturevalue(source), **options)
    kernel = service.backbone.token_embedding.embeddings
    assert kernel.dtype == dtype
    assert service.described["embedding_dim"] == size
    assert service.preprocessor.prompts["query"] == "query: "


def test_encoder_with_a_tokenizer_alone(embedder, tmp_path):
    embedder.backbone.save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="has no tokenizer"):
        load.load(tmp_path)
    with pytest.raises(
        ValueError, match="`embedding_dim` is for a .*, received 5"
    ):
        load.load(tmp_path, embedding_dim=5)
    embedder.preprocessor.tokenizer.save_to_preset(str(tmp_path))
    service = load.load(tmp_path)
    assert service.model.name == embedder.backbone.name
    assert service.preprocessor.sequence_length == 37
    embedder.preprocessor.save_to_preset(str(tmp_path))
    assert load.load(tmp_path).preprocessor.sequence_length == 29


def test_encoder_of_a_masked_language_model(embedder, tmp_path):
    tokenizer = embedder.preprocessor.tokenizer
    keras_fixedhead.FixedHeadMaskedLM(
        embedder.backbone,
        keras_fixedhead.FixedHeadMaskedLMPreprocessor(
            tokenizer, sequence_length=23
        ),
    ).save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="a FixedHeadMaskedLM.*--raw_encoder"):
        load.load(tmp_path)
    service = load.load(tmp_path, raw_encoder=True)
    assert service.model.name == embedder.backbone.name
    assert service.preprocessor.sequence_length == 37
    vocabulary = service.preprocessor.tokenizer.get_vocabulary()
    assert vocabulary == tokenizer.get_vocabulary()


def test_refusals(embedder, tmp_path):
    with pytest.raises(ValueError, match="must be a preset folder or a .keras"):
        load.load(tmp_path)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="other.keras, a Sequential"):
        load.load(tmp_path / "other.keras")
    bare = keras_fixedhead.FixedHeadTextEmbedder(embedder.backbone)
    bare.save_to_preset(str(tmp_path / "bare"))
    with pytest.raises(ValueError, match="has no tokenizer"):
        load.load(tmp_path / "bare")


@pytest.mark.slow
def test_a_quantized_file_stays_as_it_is(tmp_path):
    embedder = tiny.new_embedder()
    embedder.backbone.quantize(
        "int8", filters=lambda layer: hasattr(layer, "kernel")
    )
    embedder.save(tmp_path / "int8.keras")
    service = load.load(tmp_path / "int8.keras")
    assert any(weight.dtype == "int8" for weight in service.model.weights)
    with pytest.raises(ValueError, match="is quantized to int8"):
        load.load(tmp_path / "int8.keras", dtype="bfloat16")


def test_a_preprocessor_of_sequences_too_long_for_the_encoder(tmp_path):
    labeler = tiny.new_labeler()
    labeler.preprocessor = keras_fixedhead.FixedHeadSpanLabelerPreprocessor(
        labeler.preprocessor.tokenizer,
        sequence_length=38,
        max_question_length=7,
    )
    labeler.save(tmp_path / "long.keras")
    with pytest.raises(
        ValueError, match=r"long.keras .* up to 38 tokens, .* takes 37\."
    ):
        load.load(tmp_path / "long.keras")
