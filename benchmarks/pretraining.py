"""How fast is a step of masked language modeling beside its peers?

    python -m benchmarks.pretraining
    python -m benchmarks.pretraining --attention_sequences 4 16

KerasHub's `BertMaskedLM` in its own `fit`, the masked-language task of
tf-models-official, and `training.pretrain`: the same shape, the same batch, as
many predictions, AdamW with clipping by the global norm, the next-sentence task
left out. They take turns in one process. Prints the median of the
milliseconds and of the ratios to ours, round by round, once for sequences
without padding and once for lengths as of short texts.

With `--attention_sequences`, updates take turns with a report of
`--attention_interval` on so many sequences without padding, written to
TensorBoard: how many updates does a report cost?
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
from keras_fixedhead.diagnostics import AttentionSummaries
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from training.engine.configs import ModelConfig, RunConfig, TrainingConfig
from training.engine.optimizer import build_optimizer
from training.engine.strategy import get_strategy
from training.engine.trainer import Trainer
from training.masked_lm.configs import MaskedLMConfig, PretrainConfig
from training.masked_lm.task import MaskedLMTask
from training.prepare.configs import TextConfig
from training.prepare.text import prepare_text

_RATE, _DECAY, _EPSILON, _NORM = 1e-4, 0.01, 1e-6, 1.0


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape that all three have."""

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
    attention_sequences: tuple[int, ...] = ()
    """Sequences of a report on attention, one or more sizes."""


def make_task(
    config: Config, folder: pathlib.Path, padded: bool
) -> tuple[MaskedLMTask, dict[str, tf.Tensor]]:
    """The task of `training.pretrain` on random tokens, and a batch of it."""
    rng = np.random.default_rng(0)
    longest = config.sequence_length - 2  # [CLS] and [SEP]
    lengths = np.full(4 * config.batch_size, longest)
    if padded:
        lengths = rng.integers(2, 2 * config.mean_length - 2, len(lengths))
    vocabulary = [
        *SPECIAL_TOKENS,
        *(f"w{i}" for i in range(config.vocabulary_size - len(SPECIAL_TOKENS))),
    ]
    folder.mkdir(exist_ok=True)
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary) + "\n")
    words = np.array(vocabulary[len(SPECIAL_TOKENS) :])
    text = "\n\n".join(" ".join(rng.choice(words, n)) for n in lengths)
    for split in ("train", "heldout"):
        (folder / f"{split}.txt").write_text(text)
    prepare_text(
        TextConfig(
            output=folder / "data",
            source=(str(folder / "train.txt"),),
            heldout_source=(str(folder / "heldout.txt"),),
            vocabulary=folder / "vocabulary.txt",
        )
    )
    task = MaskedLMTask(
        PretrainConfig(
            config="benchmark",
            model=ModelConfig(
                num_layers=config.num_layers,
                num_heads=config.num_heads,
                hidden_dim=config.hidden_dim,
                intermediate_dim=config.intermediate_dim,
                head_size=config.hidden_dim // config.num_heads,
                dropout=config.dropout,
                max_sequence_length=config.sequence_length,
            ),
            training=TrainingConfig(
                steps=10_000,
                global_batch_size=config.batch_size,
                learning_rate=_RATE,
                warmup_steps=0,
                epsilon=_EPSILON,
                weight_decay=_DECAY,
                clip_norm=_NORM,
            ),
            masked_lm=MaskedLMConfig(
                sequence_length=config.sequence_length,
                max_predictions=config.predictions,
                next_sentence=False,
            ),
            run=RunConfig(data=folder / "data", workdir=folder / "train"),
        )
    )
    context = tf.distribute.InputContext(1, 0, 1)
    return task, next(iter(task.training_dataset(context, 0)))


def ours(
    task: MaskedLMTask, batch: dict[str, tf.Tensor]
) -> Callable[[], object]:
    """An update of `training.pretrain`'s loop."""
    strategy = get_strategy("one_device")
    with strategy.scope():
        task.build()
        model: typing.Any = task.model
        optimizer = build_optimizer(
            task.config.training, model.trainable_variables
        )
    trainer = Trainer(task, optimizer, strategy, task.config.run)
    trainer.train_dataset = tf.data.Dataset.from_tensors(batch).repeat()
    one = tf.constant(1)
    return lambda: trainer.train(one)


def keras_hubs(
    config: Config, batch: dict[str, tf.Tensor]
) -> Callable[[], object]:
    """An update of KerasHub's `BertMaskedLM` in Keras's own `fit`."""
    model = keras_hub.models.BertMaskedLM(
        keras_hub.models.BertBackbone(
            vocabulary_size=config.vocabulary_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            hidden_dim=config.hidden_dim,
            intermediate_dim=config.intermediate_dim,
            dropout=config.dropout,
            max_sequence_length=config.sequence_length,
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
    return lambda: model.train_function(iterator)


def model_gardens(
    config: Config, batch: dict[str, tf.Tensor]
) -> Callable[[], object]:
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


def compare_steps(config: Config, folder: pathlib.Path) -> None:
    """Times and prints the steps of the three libraries."""
    common.print_header("tokens a sequence", "", "ms", "ratio to ours")
    for padded in (False, True):
        task, batch = make_task(config, folder / str(padded), padded)
        steps = {
            "ours": ours(task, batch),
            "KerasHub": keras_hubs(config, batch),
            "tf-models-official": model_gardens(config, batch),
        }
        tokens = int(tf.reduce_sum(batch["padding_mask"])) / config.batch_size
        times = common.milliseconds(steps, config.repeats)
        for name, values in times.items():
            common.print_row(
                f"{tokens:.0f} of {config.sequence_length}",
                name,
                f"{np.median(values):.0f}",
                f"{np.median(values / times['ours']):.2f}",
            )


def compare_reports(config: Config, folder: pathlib.Path) -> None:
    """Times and prints updates and reports on attention."""
    task, batch = make_task(config, folder, padded=False)
    update = ours(task, batch)
    model, inputs = task.attention_inputs(batch)
    common.print_header(
        "sequences", "update, ms", "report, ms", "report / update"
    )
    for sequences in config.attention_sequences:
        some = {name: x[:sequences] for name, x in inputs.items()}
        summaries = AttentionSummaries(folder / "summaries", model, some)
        report = functools.partial(summaries.write, 0)
        updates, reports = common.milliseconds(
            {"update": update, "report": report}, config.repeats
        ).values()
        summaries.close()
        common.print_row(
            sequences,
            f"{np.median(updates):.0f}",
            f"{np.median(reports):.0f}",
            f"{np.median(reports / updates):.1f}",
        )


def main() -> None:
    config = common.parse(Config, "pretraining", __doc__)
    common.print_environment("TensorFlow", "Keras", "keras-hub")
    print(config)
    compare = compare_reports if config.attention_sequences else compare_steps
    with tempfile.TemporaryDirectory() as folder:
        compare(config, pathlib.Path(folder))


if __name__ == "__main__":
    main()
