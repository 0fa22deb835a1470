"""The pre-training task: masked tokens and, with them, next sentences.

tensorflow-text draws statefully what to mask and how, so a resumed run would
see other masks. Here the draws are tensors, which the caller seeds.

Shape letters: M examples of this replica, L sequence length, K masked
positions at most, V vocabulary size.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_fixedhead import (
    FixedHeadMaskedLM,
    FixedHeadMaskedLMPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.files import loading
from keras_fixedhead.packing import Packing
from keras_fixedhead.planner import encoder_flops, masked_lm_flops
from training.corpus.chunks import (
    ChunkBatches,
    chunk_bounds,
    sentence_pairs,
    texts,
)
from training.corpus.task import CorpusTask, summed_losses_and_hits
from training.corpus.tokenized import Shard
from training.engine.configs import (
    check_at_least,
    check_fraction,
    check_positive,
)
from training.engine.preset import make_encoder
from training.engine.task import losses_and_hits
from training.masked_lm.configs import MaskedLMConfig, PretrainConfig


class PretrainingBatches(ChunkBatches):
    """Batches of M examples, all of one static shape.

    int32 tensors `token_ids`, `segment_ids` and `padding_mask`, `[M, L]`;
    `mask_positions` and `mask_ids` (the original tokens), `[M, K]`;
    `next_sentence_labels`, `[M]`, 1 if the second segment is from elsewhere;
    and `mask_weights`, float32 `[M, K]`, 1 for each prediction to make.
    """

    def __init__(
        self,
        config: MaskedLMConfig,
        global_batch_size: int,
        tokenizer: FixedHeadTokenizer,
        seed: int,
    ):
        check_positive(mask_selection_rate=config.mask_selection_rate)
        check_fraction(
            mask_selection_rate=config.mask_selection_rate,
            mask_token_rate=config.mask_token_rate,
            random_token_rate=config.random_token_rate,
        )
        if config.mask_token_rate + config.random_token_rate > 1.0:
            raise ValueError(
                "`mask_token_rate` and `random_token_rate` must not add up to "
                f"more than 1. Received: {config.mask_token_rate} and "
                f"{config.random_token_rate}"
            )
        check_at_least(8, sequence_length=config.sequence_length)
        check_at_least(1, max_predictions=config.max_predictions)
        super().__init__(
            config,
            global_batch_size,
            seed,
            # [CLS] and a [SEP] behind each segment.
            config.sequence_length - (3 if config.next_sentence else 2),
        )
        self.tokenizer = tokenizer
        suffix = tokenizer.suffix_indicator
        self._is_suffix = np.array(
            [token.startswith(suffix) for token in tokenizer.get_vocabulary()]
        )

    def _deal(self, shards: Sequence[Shard]) -> list[list[Shard]]:
        dealt = super()._deal(shards)
        if self.config.next_sentence and any(
            sum(len(shard.document_lengths) for shard in window) < 2
            for window in dealt
        ):
            raise ValueError(
                "`next_sentence` takes text from other documents and needs "
                "two at least in memory at a time. Prepare text with more "
                "documents or larger shards, or pass --no_next_sentence"
            )
        return dealt

    def _examples(self, window, chunks, indices):
        config = self.config
        length, predictions = config.sequence_length, config.max_predictions
        sizes = [4, length, predictions, predictions]
        draws = tf.map_fn(
            lambda index: tf.random.stateless_uniform(
                [sum(sizes)], seed=self._example_seed(index), dtype=tf.float64
            ),
            indices,
            fn_output_signature=tf.float64,
        )
        pair, *masks = tf.split(draws, sizes, axis=1)
        if config.next_sentence:
            *segments, elsewhere = sentence_pairs(window, chunks, pair)
        else:
            start, end, _ = chunk_bounds(window, chunks)
            segments = [texts(window, start, end)]
            elsewhere = tf.zeros_like(chunks, dtype=tf.bool)
        ids, segment_ids = tf_text.combine_segments(
            segments,
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
        )
        real = tf.sequence_mask(ids.row_lengths(), length)
        token_ids = ids.to_tensor(
            self.tokenizer.pad_token_id, shape=[None, length]
        )
        return {
            **self.mask(token_ids, real, *masks),
            "segment_ids": segment_ids.to_tensor(shape=[None, length]),
            "padding_mask": tf.cast(real, tf.int32),
            "next_sentence_labels": tf.cast(elsewhere, tf.int32),
        }

    def mask(
        self,
        token_ids: tf.Tensor,
        real: tf.Tensor,
        order: tf.Tensor,
        action: tf.Tensor,
        replacement: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Masks int32 ids `[M, L]`, of which `real`, bool `[M, L]`, are tokens.

        Uniform draws from `[0, 1)` decide what to mask and how: `order`,
        `[M, L]`, in which order the tokens or words of an example come;
        `action`, `[M, K]`, whether `[MASK]`, a random token or the token itself
        replaces a token; `replacement`, `[M, K]`, which random token.
        """
        config, tokenizer = self.config, self.tokenizer
        special = (token_ids == tokenizer.start_token_id) | (
            token_ids == tokenizer.end_token_id
        )
        selectable = real & ~special
        if config.whole_word:
            # A segment may begin in the middle of a word.
            begins = tf.pad(special[:, :-1], [[0, 0], [1, 0]])
            begins |= ~tf.gather(self._is_suffix, token_ids)
            word = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1
            order = tf.gather(order, tf.maximum(word, 0), batch_dims=1)
        order = tf.where(selectable, order, 1.0)
        # Tokens up to this one, or to the end of its word, in the drawn order.
        rank = tf.searchsorted(tf.sort(order, axis=1), order, side="right")
        count = tf.reduce_sum(tf.cast(selectable, tf.float32), axis=1)
        budget = tf.minimum(
            tf.cast(tf.math.ceil(count * config.mask_selection_rate), tf.int32),
            config.max_predictions,
        )
        selected = selectable & (rank <= budget[:, tf.newaxis])

        def chosen(values):  # [M, L] -> [M, K]
            return tf.ragged.boolean_mask(values, selected).to_tensor(
                shape=[None, config.max_predictions]
            )

        # The number of each selected token in its row.
        number = tf.cumsum(tf.cast(selected, tf.int32), axis=1)
        number = tf.maximum(number - 1, 0)
        action = tf.gather(action, number, batch_dims=1)
        random_ids = tf.cast(
            tf.gather(replacement, number, batch_dims=1)
            * tokenizer.vocabulary_size(),
            token_ids.dtype,
        )
        random_up_to = config.mask_token_rate + config.random_token_rate
        values = tf.where(action < random_up_to, random_ids, token_ids)
        values = tf.where(
            action < config.mask_token_rate, tokenizer.mask_token_id, values
        )
        return {
            "token_ids": tf.where(selected, values, token_ids),
            "mask_positions": chosen(
                tf.ones_like(token_ids) * tf.range(config.sequence_length)
            ),
            "mask_ids": chosen(token_ids),
            "mask_weights": chosen(tf.ones_like(order, tf.float32)),
        }


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
        real = batch["mask_weights"] > 0
        outputs = self.compute(
            self.model.predict_packed,
            batch,
            training,
            real=real if packed else None,
        )
        if not self.config.masked_lm.next_sentence:
            outputs = {"masked_lm": outputs}
        sums = summed_losses_and_hits(
            outputs["masked_lm"],  # [P, V] or [M, K, V]
            batch["mask_ids"],
            Packing(real, fixed_size=not packed),
            batch["mask_weights"],
        )
        if "next_sentence" in outputs:
            sums += losses_and_hits(
                outputs["next_sentence"], batch["next_sentence_labels"]
            )
        return dict(zip(self.metrics, sums, strict=True))

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
