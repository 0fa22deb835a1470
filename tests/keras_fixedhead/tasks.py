"""The tasks, each with every option, for what every task does."""

import dataclasses

import numpy as np

import keras_fixedhead
from tests import tiny_models

TEXTS = ["attention heads.", "a b c d e f g", "head, head, head", "é"]
LENGTH = 13


@dataclasses.dataclass(frozen=True)
class Task:
    cls: type
    options: dict
    """Every argument of the class; none is its default."""
    preprocessor: dict
    """Every argument of the preprocessor's class; none is its default."""
    x: object
    """Texts to train on."""
    packed: str
    """The method that returns what calling the model does."""
    y: object = None
    no_y: int = 0
    """What stands in `y` at padding."""
    loss: str = "auto"
    required: dict = dataclasses.field(default_factory=dict)
    """The arguments that have no default."""
    trained: tuple[dict, dict] = ({}, {})
    """Other arguments of the class and of the backbone, to be trained."""
    backbone: dict = dataclasses.field(default_factory=dict)
    in_float32: bool = True
    """Whether outputs are float32 where the backbone computes in bfloat16."""
    float32_head: bool = False
    """Whether weights of the head are float32 where the backbone's are not."""
    variants: tuple[tuple[dict, dict], ...] = ()
    """Further arguments of the class and of the backbone, to be packed."""

    def new(self, vocabulary, dtype=None, options=None, **backbone):
        """A model whose biases and norms are random, too."""
        model = tiny_models.new_task(
            self.cls,
            vocabulary,
            backbone={**self.backbone, "dtype": dtype, **backbone},
            preprocessor=self.preprocessor,
            **{**self.options, **(options or {})},
        )
        return tiny_models.add_noise(model)


# Embeddings that are neither cut nor projected.
_WHOLE = {"embedding_dim": None, "projection_dim": None}

TASKS = {
    "text_embedder": Task(
        cls=keras_fixedhead.FixedHeadTextEmbedder,
        options={
            "pooling_mode": "max",
            "normalize": False,
            "embedding_dim": 5,
            "projection_dim": 7,
        },
        preprocessor={"sequence_length": LENGTH, "prompts": {"query": "a "}},
        trained=({"pooling_mode": "mean", **_WHOLE}, {}),
        float32_head=True,
        x=TEXTS,
        y=np.ones((4, 11)),
        loss="mse",
        packed="embed_packed",
        variants=(
            ({"pooling_mode": "mean", "normalize": True}, {}),
            ({"pooling_mode": "cls", **_WHOLE}, {}),
        ),
    ),
    "text_classifier": Task(
        cls=keras_fixedhead.FixedHeadTextClassifier,
        options={
            "num_classes": 3,
            "pooling_mode": "mean",
            "dropout": 0.3,
            "labels": ["no", "perhaps", "yes"],
        },
        preprocessor={"sequence_length": LENGTH, "truncate": "waterfall"},
        required={"num_classes": 3},
        trained=({"dropout": 0.0}, {}),
        x=(TEXTS, TEXTS[::-1]),
        y=np.array([2, 0, 1, 2]),
        packed="classify_packed",
        float32_head=True,
        variants=(
            ({"pooling_mode": "cls"}, {"pooler": True}),
            ({"pooling_mode": "cls"}, {"attention_window": 2}),
            ({"pooling_mode": "max"}, {"pooler": True}),
        ),
    ),
    "token_classifier": Task(
        cls=keras_fixedhead.FixedHeadTokenClassifier,
        options={"num_classes": 2, "dropout": 0.3, "labels": ["no", "yes"]},
        preprocessor={"sequence_length": LENGTH, "truncate": "waterfall"},
        required={"num_classes": 2},
        trained=({"dropout": 0.0}, {}),
        x=TEXTS,
        y=np.array([[-1, 0, 1] + 10 * [-1], [-1, 1, 1] + 10 * [-1]] * 2),
        no_y=-1,
        packed="classify_packed",
    ),
    "masked_lm": Task(
        cls=keras_fixedhead.FixedHeadMaskedLM,
        options={"next_sentence": True},
        backbone={"pooler": True},
        preprocessor={
            "sequence_length": LENGTH,
            "mask_selection_length": 5,
            "mask_selection_rate": 0.3,
            "mask_token_rate": 0.7,
            "random_token_rate": 0.2,
            "truncate": "waterfall",
        },
        x=(TEXTS, TEXTS[::-1]),
        trained=({"next_sentence": False}, {"pooler": False}),
        packed="predict_packed",
        in_float32=False,
        variants=(({"next_sentence": False}, {"pooler": False}),),
    ),
    "causal_lm": Task(
        cls=keras_fixedhead.FixedHeadCausalLM,
        options={},
        backbone={"causal": True, "head_size": [5, 7]},
        preprocessor={"sequence_length": LENGTH, "add_start_token": False},
        x=TEXTS,
        packed="predict_packed",
        in_float32=False,
    ),
    "span_labeler": Task(
        cls=keras_fixedhead.FixedHeadSpanLabeler,
        options={"dropout": 0.3},
        trained=({"dropout": 0.0}, {}),
        preprocessor={
            "sequence_length": LENGTH,
            "document_stride": 3,
            "max_question_length": 2,
        },
        x=(TEXTS, TEXTS[::-1]),
        y={"start": np.array([4, 5, 6, 4]), "end": np.array([4, 6, 6, 5])},
        packed="label_packed",
    ),
}
