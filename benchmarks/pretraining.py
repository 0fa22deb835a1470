"""How fast is a step of masked language modeling beside its peers?

    python -m benchmarks.pretraining

KerasHub's `BertMaskedLM` in its own `fit`, the masked-language task of
tf-models-official, and `training.pretrain`: the same shape, the same batch, as
many predictions, AdamW with clipping by the global norm, the next-sentence task
left out. They take turns in one process. Prints the median of the
milliseconds and of the ratios to ours, round by round, once for sequences
without padding and once for lengths as of short texts.
"""

import dataclasses
import functools
import pathlib
import tempfile
import typing
from collections.abc import Callable

import keras
import keras_hub
import numpy as np
import tensorflow as tf
import tf_keras
from official.modeling import tf_utils
from official.modeling.optimization.legacy_adamw import AdamWeightDecay
from official.nlp.modeling import models, networks

from benchmarks import common
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from training.engine.configs import named_run
from training.engine.optimizer import build_optimizer
from training.engine.strategy import get_strategy
from training.engine.trainer import Trainer
from training.masked_lm.configs import PretrainConfig
from training.masked_lm.task import MaskedLMTask
from training.prepare.configs import TextConfig
from training.prepare.text import prepare_text

_RATE, _DECAY, _EPSILON, _NORM = 1e-4, 0.01, 1e-6, 1.0
# An update of a library.
Step = Callable[[], object]
Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Config:
    num_layers: int = 4
    hidden_dim: int = 512
    num_heads: int = 8
    intermediate_dim: int = 2048
    vocabulary_size: int = 30_522
    batch_size: int = 16
    sequence_length: int = 128
    predictions: int = 20
    dropout: float = 0.1
    mean_length: int = 42
    """Of the batch with padding, in tokens."""
    repeats: int = 25

    @property
    def shape(self) -> dict[str, typing.Any]:
        """What the encoders of KerasHub and of `training.pretrain` share."""
        names = "num_layers num_heads hidden_dim intermediate_dim dropout"
        shape = {name: getattr(self, name) for name in names.split()}
        return {**shape, "max_sequence_length": self.sequence_length}


def make_task(
    config: Config, folder: pathlib.Path, padded: bool
) -> tuple[MaskedLMTask, Batch]:
    """The task of `training.pretrain` on random tokens, and a batch of it."""
    rng = np.random.default_rng(0)
    longest = config.sequence_length - 2  # [CLS] and [SEP]
    lengths = np.full(4 * config.batch_size, longest)
    if padded:
        lengths = rng.integers(2, 2 * config.mean_length - 2, len(lengths))
    words = [f"w{i}" for i in range(config.vocabulary_size - 5)]
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    text = "\n\n".join(" ".join(rng.choice(words, n)) for n in lengths)
    for split in ("train", "heldout"):
        (folder / f"{split}.txt").write_text(text)
    prepare_text(
        TextConfig(
            output=folder / "data",
            source=(str(folder / "train.txt"),),
            heldout_source=(str(folder / "heldout.txt"),),
            vocabulary=vocabulary,
        )
    )
    task = MaskedLMTask(
        named_run(
            PretrainConfig,
            config="benchmark",
            data=folder / "data",
            workdir=folder / "train",
            **config.shape,
            head_size=config.hidden_dim // config.num_heads,
            steps=10_000,
            global_batch_size=config.batch_size,
            learning_rate=_RATE,
            warmup_steps=0,
            epsilon=_EPSILON,
            weight_decay=_DECAY,
            clip_norm=_NORM,
            sequence_length=config.sequence_length,
            max_predictions=config.predictions,
            next_sentence=False,
        )
    )
    context = tf.distribute.InputContext(1, 0, 1)
    return task, next(iter(task.training_dataset(context, 0)))


def ours(task: MaskedLMTask, batch: Batch) -> Step:
    """An update of `training.pretrain`'s loop."""
    strategy = get_strategy("one_device")
    with strategy.scope():
        task.build()
        optimizer = build_optimizer(
            task.config.training, task.model.trainable_variables
        )
    trainer = Trainer(task, optimizer, strategy, task.config.run)
    trainer.train_dataset = tf.data.Dataset.from_tensors(batch).repeat()
    return functools.partial(trainer.train, tf.constant(1))


def keras_hubs(config: Config, batch: Batch) -> Step:
    """An update of KerasHub's `BertMaskedLM` in Keras's own `fit`."""
    model = keras_hub.models.BertMaskedLM(
        keras_hub.models.BertBackbone(
            vocabulary_size=config.vocabulary_size, **config.shape
        )
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(
            _RATE,
            weight_decay=_DECAY,
            epsilon=_EPSILON,
            global_clipnorm=_NORM,
        ),
        jit_compile=False,
    )
    names = "token_ids segment_ids padding_mask mask_positions".split()
    inputs = {name: batch[name] for name in names}
    data = (inputs, batch["mask_ids"], batch["mask_weights"])
    iterator = iter(tf.data.Dataset.from_tensors(data).repeat())
    model.make_train_function()
    return functools.partial(model.train_function, iterator)


def model_gardens(config: Config, batch: Batch) -> Step:
    """An update of tf-models-official's `BertPretrainerV2`, as its task's.

    The task itself imports TensorFlow Hub, which needs an old setuptools.
    """
    model = models.BertPretrainerV2(
        networks.BertEncoderV2(
            vocab_size=config.vocabulary_size,
            hidden_size=config.hidden_dim,
            num_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            inner_dim=config.intermediate_dim,
            output_dropout=config.dropout,
            attention_dropout=config.dropout,
            max_sequence_length=config.sequence_length,
        ),
        mlm_activation=tf_utils.get_activation("gelu"),
    )
    optimizer = AdamWeightDecay(
        _RATE,
        weight_decay_rate=_DECAY,
        epsilon=_EPSILON,
        gradient_clip_norm=_NORM,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    )
    accuracy = tf_keras.metrics.SparseCategoricalAccuracy()
    inputs = {
        "input_word_ids": batch["token_ids"],
        "input_mask": batch["padding_mask"],
        "input_type_ids": batch["segment_ids"],
        "masked_lm_positions": batch["mask_positions"],
    }
    labels, weights = batch["mask_ids"], batch["mask_weights"]

    @tf.function
    def update():
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)["mlm_logits"]
            losses = tf_keras.losses.sparse_categorical_crossentropy(
                labels, logits, from_logits=True
            )
            loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(list(zip(gradients, variables)))
        accuracy.update_state(labels, logits, weights)
        return loss

    return update


def main() -> None:
    config = common.parse(Config)
    print(common.environment("tensorflow", "keras", "keras-hub"))
    print(config)
    rows = []
    for padded in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            task, batch = make_task(config, pathlib.Path(folder), padded)
        steps = {
            "ours": ours(task, batch),
            "KerasHub": keras_hubs(config, batch),
            "tf-models-official": model_gardens(config, batch),
        }
        tokens = int(tf.reduce_sum(batch["padding_mask"])) / config.batch_size
        name = f"{tokens:.0f} of {config.sequence_length}"
        compared = common.compare(steps, config.repeats)
        rows += [[name, *row] for row in compared]
    common.print_table(["tokens a sequence", "", "ms", "ratio to ours"], rows)


if __name__ == "__main__":
    main()
