"""The pre-training task: masked tokens and, with them, next sentences.

Shape letters: M examples of this replica, L sequence length, K masked
positions, V vocabulary size.
"""

import tensorflow as tf

from keras_fixedhead import FixedHeadMaskedLM, FixedHeadMaskedLMPreprocessor
from keras_fixedhead.files import loading
from keras_fixedhead.packing import Packing
from keras_fixedhead.planner import encoder_flops, masked_lm_flops
from training.corpus.task import CorpusTask
from training.engine.encoder import make_encoder
from training.engine.task import losses_and_hits
from training.masked_lm.batches import PretrainingBatches
from training.masked_lm.configs import PretrainConfig


class MaskedLMTask(CorpusTask):
    """BERT's pre-training (Devlin et al. 2018, section 3.1)."""

    part = "masked_lm"
    counts = ("predictions", *CorpusTask.counts)
    inputs = (*CorpusTask.inputs, "mask_positions")

    def __init__(self, config: PretrainConfig):
        super().__init__(config)
        masked_lm = config.masked_lm
        self._preprocessor = FixedHeadMaskedLMPreprocessor(
            self._tokenizer,
            sequence_length=masked_lm.sequence_length,
            mask_selection_rate=masked_lm.mask_selection_rate,
            mask_selection_length=masked_lm.max_predictions,
            mask_token_rate=masked_lm.mask_token_rate,
            random_token_rate=masked_lm.random_token_rate,
        )
        self._batches = PretrainingBatches(
            masked_lm,
            config.training.global_batch_size,
            self._tokenizer,
            config.training.seed,
        )

    @property
    def metrics(self):
        heads = ["masked_lm"]
        if self.config.masked_lm.next_sentence:
            heads.append("next_sentence")
        return [f"{h}_{f}" for h in heads for f in ("loss", "accuracy")]

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
            with loading(masked_lm.init, "init"):
                earlier = FixedHeadMaskedLM.from_preset(
                    str(masked_lm.init), dtype=model.dtype
                )
            both = (earlier.next_sentence, self.model.next_sentence)
            self._start_from(earlier, {"next_sentence": both})

    def totals(self, batch):
        predictions = tf.reduce_sum(batch["mask_weights"])
        return {"predictions": predictions, **super().totals(batch)}

    def loss(self, batch, totals):
        shares = {}
        for name, values in self._judge(batch, training=True).items():
            count = tf.cast(totals[_counted(name)], values.dtype)
            shares[name] = tf.reduce_sum(values) / count
        loss = shares["masked_lm_loss"]
        if self.config.masked_lm.next_sentence:
            loss += shares["next_sentence_loss"]
        return loss, shares

    def _judge(self, batch, training):
        """Returns losses in nats and hits of each example, `[M]`.

        Those of masked tokens are sums over the example's masks.
        """
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
        if not self.config.masked_lm.next_sentence:
            outputs = {"masked_lm": outputs}
        logits = outputs["masked_lm"]  # [P, V] or [M, K, V]
        losses, hits = losses_and_hits(
            tf.reshape(logits, [-1, logits.shape[-1]]),
            places.pack(batch["mask_ids"]),
        )
        judged = places.pad(tf.stack([losses, hits], axis=-1))  # [M, K, 2]
        weights = tf.cast(weights, losses.dtype)[..., tf.newaxis]
        losses, hits = tf.unstack(
            tf.reduce_sum(judged * weights, axis=1), axis=-1
        )
        sums = {"masked_lm_loss": losses, "masked_lm_accuracy": hits}
        if "next_sentence" in outputs:
            losses, hits = losses_and_hits(
                outputs["next_sentence"], batch["next_sentence_labels"]
            )
            sums["next_sentence_loss"] = losses
            sums["next_sentence_accuracy"] = hits
        return sums

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

    def evaluation_step(self, batch):
        return {
            **self._judge(batch, training=False),
            "index": batch["index"],
            "predictions": tf.reduce_sum(batch["mask_weights"], axis=1),
        }

    def figures(self, outputs):
        real = outputs.pop("index") >= 0
        predictions = outputs.pop("predictions")[real]
        counts = {"examples": real.sum(), "predictions": predictions.sum()}
        return {
            f"heldout_{name}": float(
                values[real].sum() / counts[_counted(name)]
            )
            for name, values in outputs.items()
        }


def _counted(name):
    """Returns which total a metric is a mean over."""
    return "examples" if name.startswith("next_sentence") else "predictions"
