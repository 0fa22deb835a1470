"""The pre-training task: masked tokens and, with them, next sentences.

Shape letters: M examples of this replica, L sequence length, K masked
positions, V vocabulary size.
"""

import tensorflow as tf

from keras_fixedhead import FixedHeadMaskedLM, FixedHeadMaskedLMPreprocessor
from keras_fixedhead.files import loading
from keras_fixedhead.packing import Packing
from keras_fixedhead.planner import encoder_flops, masked_lm_flops
from training.corpus.task import CorpusTask, summed_losses_and_hits
from training.engine.preset import make_encoder
from training.engine.task import losses_and_hits
from training.masked_lm.batches import PretrainingBatches
from training.masked_lm.configs import PretrainConfig


class MaskedLMTask(CorpusTask):
    """BERT's pre-training (Devlin et al. 2018, section 3.1)."""

    part = "masked_lm"
    counts = ("predictions", *CorpusTask.counts)
    inputs = (*CorpusTask.inputs, "mask_positions")
    model: FixedHeadMaskedLM

    def __init__(self, config: PretrainConfig):
        super().__init__(config)
        masked_lm = config.masked_lm
        self.metrics = ["masked_lm_loss", "masked_lm_accuracy"]
        if masked_lm.next_sentence:
            self.metrics += ["next_sentence_loss", "next_sentence_accuracy"]
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

    def build(self) -> None:
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
            self._start_from(earlier, "next_sentence")

    def _counts(self, batch):
        predictions = tf.reduce_sum(batch["mask_weights"], axis=1)
        return {"predictions": predictions, **super()._counts(batch)}

    def _counted(self, name):
        return "predictions" if name.startswith("masked_lm") else "examples"

    def _sums(self, batch, training):
        packed = self.config.run.packed
        weights = batch["mask_weights"]
        real = weights > 0 if packed else tf.ones_like(weights, bool)
        outputs = self.compute(
            self.model.predict_packed,
            batch,
            training,
            real=real if packed else None,
        )
        if not self.config.masked_lm.next_sentence:
            outputs = {"masked_lm": outputs}
        sums = {}
        sums["masked_lm_loss"], sums["masked_lm_accuracy"] = (
            summed_losses_and_hits(
                outputs["masked_lm"],  # [P, V] or [M, K, V]
                batch["mask_ids"],
                Packing(real, fixed_size=not packed),
                weights,
            )
        )
        if "next_sentence" in outputs:
            sums["next_sentence_loss"], sums["next_sentence_accuracy"] = (
                losses_and_hits(
                    outputs["next_sentence"], batch["next_sentence_labels"]
                )
            )
        return sums

    def flops(self, totals: dict[str, float]) -> float:
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
