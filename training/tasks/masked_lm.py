"""The pre-training task: masked tokens and, with them, next sentences.

Shape letters: M examples of this replica, L sequence length, K masked
positions, V vocabulary size.
"""

import dataclasses
import pathlib

import tensorflow as tf

from keras_fixedhead import (
    FixedHeadMaskedLM,
    FixedHeadMaskedLMPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.packing import Packing
from keras_fixedhead.planner import encoder_flops, masked_lm_flops
from training.configs import PretrainConfig
from training.data.corpus import check_shards, read_corpus
from training.data.pretraining import PretrainingBatches
from training.preset import weights_sha256
from training.tasks.cross_entropy import losses_and_hits
from training.tasks.encoder import make_encoder, refuse_differences
from training.tasks.sequences import SequenceTask


class MaskedLMTask(SequenceTask):
    """BERT's pre-training (Devlin et al. 2018, section 3.1).

    Reads a data folder of `python -m training.prepare text`.

    Args:
        config: The run.

    Raises:
        OSError: A file of the data folder is missing.
        ValueError: The data folder, or a value of the configuration, is
            wrong.
    """

    counts = ("predictions", *SequenceTask.counts)
    inputs = (*SequenceTask.inputs, "mask_positions")

    def __init__(self, config: PretrainConfig):
        self.config = config
        masked_lm, model = config.masked_lm, config.model
        if masked_lm.sequence_length > model.max_sequence_length:
            raise ValueError(
                "`sequence_length` must be at most max_sequence_length="
                f"{model.max_sequence_length}. "
                f"Received: {masked_lm.sequence_length}"
            )
        self._corpus = read_corpus(config.run.data)
        if not self._corpus.heldout:
            raise ValueError(
                f"`data` {str(config.run.data)!r} has no held-out documents "
                "to evaluate on. Prepare it with --heldout or "
                "--heldout_source"
            )
        tokenizer = FixedHeadTokenizer(
            self._corpus.vocabulary, lowercase=self._corpus.lowercase
        )
        self._preprocessor = FixedHeadMaskedLMPreprocessor(
            tokenizer,
            sequence_length=masked_lm.sequence_length,
            mask_selection_rate=masked_lm.mask_selection_rate,
            mask_selection_length=masked_lm.max_predictions,
            mask_token_rate=masked_lm.mask_token_rate,
            random_token_rate=masked_lm.random_token_rate,
        )
        self._batches = PretrainingBatches(
            masked_lm,
            config.training.global_batch_size,
            tokenizer,
            config.training.seed,
        )

    @property
    def metrics(self):
        heads = ["masked_lm"]
        if self.config.masked_lm.next_sentence:
            heads.append("next_sentence")
        return [f"{h}_{f}" for h in heads for f in ("loss", "accuracy")]

    @property
    def settings(self):
        settings = dataclasses.asdict(self.config.masked_lm)
        init = settings.pop("init")
        return {
            "masked_lm": settings,
            "init_sha256": None
            if init is None
            else weights_sha256(init, "init"),
            "data_sha256": self._corpus.manifest_sha256,
        }

    @property
    def warnings(self):
        model = self.config.model
        head_size = model.head_size or model.max_sequence_length
        length = self.config.masked_lm.sequence_length
        if head_size >= length:
            return []
        return [
            f"heads of size {head_size} cannot represent every attention "
            f"pattern over {length} tokens, a bottleneck (Bhojanapalli et al. "
            "2020, Theorem 1)"
        ]

    def build(self):
        model, masked_lm = self.config.model, self.config.masked_lm
        self.model = FixedHeadMaskedLM(
            make_encoder(
                model,
                len(self._corpus.vocabulary),
                pooler=masked_lm.next_sentence,
            ),
            preprocessor=self._preprocessor,
            next_sentence=masked_lm.next_sentence,
        )
        if masked_lm.init is not None:
            self._start_from(masked_lm.init)

    def _start_from(self, preset):
        """Takes over the weights of a preset of the same shape."""
        earlier = FixedHeadMaskedLM.from_preset(
            str(preset), dtype=self.config.model.dtype
        )
        ours = self.model.backbone.get_config()
        theirs = earlier.backbone.get_config()
        refuse_differences(
            preset,
            {
                name: (theirs[name], ours[name])
                for name in ours.keys() - {"name", "dtype", "dropout"}
            }
            | {
                "next_sentence": (
                    earlier.next_sentence,
                    self.model.next_sentence,
                )
            },
        )
        if (
            earlier.preprocessor.tokenizer.get_vocabulary()
            != self._corpus.vocabulary
        ):
            raise ValueError(
                f"`init` {str(preset)!r} must have the vocabulary of the data."
            )
        self.model.set_weights(earlier.get_weights())

    def training_dataset(self, context, first_step):
        return self._batches.training(self._corpus.train, context, first_step)

    def totals(self, batch):
        predictions = tf.reduce_sum(batch["mask_weights"])
        return {"predictions": predictions, **super().totals(batch)}

    def loss(self, batch, totals):
        sums = {
            name: tf.reduce_sum(values)
            for name, values in self._judge(batch, training=True).items()
        }
        shares = {
            name: value
            / tf.cast(
                totals[
                    "examples"
                    if name.startswith("next_sentence")
                    else "predictions"
                ],
                value.dtype,
            )
            for name, value in sums.items()
        }
        loss = shares["masked_lm_loss"]
        if self.config.masked_lm.next_sentence:
            loss += shares["next_sentence_loss"]
        return loss, shares

    def _judge(self, batch, training):
        """Losses in nats and hits of each example, sums over its masks.

        Returns:
            Dictionary of float tensors `[M]`.
        """
        next_sentence = self.config.masked_lm.next_sentence
        packed = self.config.run.packed
        weights = batch["mask_weights"]
        real = weights > 0 if packed else tf.ones_like(weights, bool)
        places = Packing(real, fixed_size=not packed)
        outputs = self.model.predict_packed(
            self.model_inputs(batch),
            real=real if packed else None,
            training=training,
            fixed_size=not packed,
        )
        if not next_sentence:
            outputs = {"masked_lm": outputs}
        judged = {}
        logits = outputs["masked_lm"]  # [P, V] or [M, K, V]
        losses, hits = losses_and_hits(
            tf.reshape(logits, [-1, logits.shape[-1]]),
            places.pack(batch["mask_ids"]),
        )
        sums = tf.reduce_sum(
            places.pad(tf.stack([losses, hits], axis=-1))
            * tf.cast(weights, losses.dtype)[..., tf.newaxis],
            axis=1,
        )
        judged["masked_lm_loss"], judged["masked_lm_accuracy"] = tf.unstack(
            sums, axis=-1
        )
        if next_sentence:
            (
                judged["next_sentence_loss"],
                judged["next_sentence_accuracy"],
            ) = losses_and_hits(
                outputs["next_sentence"], batch["next_sentence_labels"]
            )
        return judged

    def flops(self, totals):
        backbone, masked_lm = self.model.backbone, self.config.masked_lm
        positions = totals["predictions"]
        if masked_lm.next_sentence:
            positions += totals["examples"]
        of_a_token = encoder_flops(
            backbone, masked_lm.sequence_length, positions / totals["tokens"]
        )
        return 3 * (
            totals["tokens"] * of_a_token
            + totals["predictions"] * masked_lm_flops(backbone)
        )

    def evaluation_dataset(self, context):
        return self._batches.evaluation(self._corpus.heldout, context)

    def evaluation_step(self, batch):
        return {
            **self._judge(batch, training=False),
            "index": batch["index"],
            "predictions": tf.reduce_sum(batch["mask_weights"], axis=1),
        }

    def figures(self, outputs):
        real = outputs.pop("index") >= 0
        predictions = outputs.pop("predictions")[real].sum()
        return {
            f"heldout_{name}": float(
                values[real].sum()
                / (
                    real.sum()
                    if name.startswith("next_sentence")
                    else predictions
                )
            )
            for name, values in outputs.items()
        }

    def save(self, folder: pathlib.Path):
        self.model.save_to_preset(str(folder))

    def check_data(self, error):
        if isinstance(error, tf.errors.DataLossError):
            # It says where in a shard, but not in which.
            corpus = read_corpus(self._corpus.folder)
            check_shards([*corpus.train, *corpus.heldout])
