"""What tasks on the documents of a data folder have in common."""

import abc
import dataclasses

import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.packing import Packing
from training.corpus.tokenized import check_shards, read_corpus
from training.engine.configs import ExperimentConfig
from training.engine.preset import refuse_differences, weights_sha256
from training.engine.task import SequenceTask, losses_and_hits, mean_share


class CorpusTask(SequenceTask):
    """A task on a data folder of `python -m training.prepare text`.

    A subclass sets `part`, the name of the part of its configuration that has
    `sequence_length` and `init`, and `_batches`, its `ChunkBatches`. Its
    metrics are means over what `_counts` counts, such as tokens.
    """

    part: str

    def __init__(self, config: ExperimentConfig):
        self.config = config
        self._examples = getattr(config, self.part)
        model, length = config.model, self._examples.sequence_length
        if length > model.max_sequence_length:
            raise ValueError(
                "`sequence_length` must be at most max_sequence_length="
                f"{model.max_sequence_length}. Received: {length}"
            )
        self._corpus = read_corpus(config.run.data)
        if not self._corpus.heldout:
            raise ValueError(
                f"`data` {str(config.run.data)!r} has no held-out documents "
                "to evaluate on. Prepare it with --heldout or "
                "--heldout_source"
            )
        head_size = model.head_size or model.max_sequence_length
        if head_size < length:
            self.warnings = [
                f"heads of size {head_size} cannot represent every attention "
                f"pattern over {length} tokens, a bottleneck (Bhojanapalli et "
                "al. 2020, Theorem 1)"
            ]
        self._training = self._corpus.train
        self._validation = self._corpus.heldout
        self._tokenizer = FixedHeadTokenizer(
            self._corpus.vocabulary, lowercase=self._corpus.lowercase
        )

    @property
    def settings(self) -> dict:
        settings = dataclasses.asdict(self._examples)
        init = settings.pop("init")
        return {
            self.part: settings,
            "init_sha256": init and weights_sha256(init, "init"),
            "data_sha256": self._corpus.manifest_sha256,
        }

    @property
    def counts_of_data(self) -> dict[str, int]:
        return {
            f"{name} {what}": int(sum(map(count, shards)))
            for name, shards in (
                ("training", self._training),
                ("held-out", self._validation),
            )
            for what, count in (
                ("documents", lambda shard: len(shard.document_lengths)),
                ("tokens", lambda shard: shard.document_lengths.sum()),
            )
        }

    def _start_from(self, earlier, *names):
        """Copies the weights of `init`, a model of the same shape.

        Its attributes `names` must agree, too.
        """

        def shape(model):
            config = model.backbone.get_config()
            for name in ("name", "dtype", "dropout"):
                del config[name]
            return config | {name: getattr(model, name) for name in names}

        init = self._examples.init
        refuse_differences(init, shape(earlier), shape(self.model))
        vocabulary = earlier.preprocessor.tokenizer.get_vocabulary()
        if vocabulary != self._corpus.vocabulary:
            raise ValueError(
                f"`init` {str(init)!r} must have the vocabulary of the data."
            )
        self.model.set_weights(earlier.get_weights())

    @abc.abstractmethod
    def _sums(self, batch: dict, training: bool) -> dict[str, tf.Tensor]:
        """Returns each example's losses, in nats, and hits, summed, `[M]`."""

    def _counts(self, batch: dict) -> dict[str, tf.Tensor]:
        """Returns each example's part of `totals`, float `[M]`."""
        tokens = tf.reduce_sum(batch["padding_mask"], axis=1)
        return {
            "tokens": tf.cast(tokens, tf.float32),
            "examples": tf.ones(tf.shape(tokens)),
        }

    def _counted(self, name: str) -> str:
        """Returns the total that a metric is a mean over."""
        return "tokens"

    def totals(self, batch: dict) -> dict[str, tf.Tensor]:
        counts = self._counts(batch)
        return {name: tf.reduce_sum(each) for name, each in counts.items()}

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        shares = {
            name: mean_share(sums, totals[self._counted(name)])
            for name, sums in self._sums(batch, training=True).items()
        }
        losses = [shares[name] for name in shares if name.endswith("loss")]
        return tf.add_n(losses), shares

    def evaluation_step(self, batch: dict) -> dict[str, tf.Tensor]:
        return {
            "index": batch["index"],
            **self._sums(batch, training=False),
            **self._counts(batch),
        }

    def figures(self, outputs: dict) -> dict[str, float]:
        real = outputs["index"] >= 0
        sums = {
            name: values[real].sum(dtype="float64")
            for name, values in outputs.items()
        }
        return {
            f"heldout_{name}": float(sums[name] / sums[self._counted(name)])
            for name in outputs
            if name not in ("index", *self.counts)
        }

    def check_data(self, error: tf.errors.OpError) -> None:
        if isinstance(error, tf.errors.DataLossError):
            # The error does not say which shard is damaged.
            check_shards([*self._corpus.train, *self._corpus.heldout])


def summed_losses_and_hits(
    logits: tf.Tensor, labels: tf.Tensor, packing: Packing, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `losses_and_hits`, weighted and summed over each example, `[M]`.

    `logits` are packed or padded, `labels` and `weights` `[M, T]`.
    """
    judged = losses_and_hits(
        tf.reshape(logits, [-1, logits.shape[-1]]), packing.pack(labels)
    )
    judged = packing.pad(tf.stack(judged, axis=-1))  # [M, T, 2]
    weights = tf.cast(weights, judged.dtype)[..., tf.newaxis]
    losses, hits = tf.unstack(tf.reduce_sum(judged * weights, axis=1), axis=-1)
    return losses, hits
