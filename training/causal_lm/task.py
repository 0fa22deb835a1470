"""The language model's task: the next token of a text.

Shape letters: M sequences of this replica, T tokens, P real tokens of a
batch, V vocabulary size.
"""

import math

import tensorflow as tf

from keras_fixedhead import (
    FixedHeadCausalLM,
    FixedHeadCausalLMPreprocessor,
    FixedHeadTokenizer,
)
from training.causal_lm.configs import CausalLMConfig, LanguageModelConfig
from training.corpus.chunks import ChunkBatches, chunk_bounds, texts
from training.corpus.task import CorpusTask, summed_losses_and_hits
from training.engine.configs import check_at_least
from training.engine.preset import make_encoder, read_task


class LanguageModelBatches(ChunkBatches):
    """Batches of M chunks, in which each token is predicted once.

    A row is [CLS], the tokens of a chunk and, if the chunk ends its document,
    [SEP]. The model reads all but the last, `token_ids`, and predicts all but
    the first, `labels`; both, and `padding_mask`, are int32 `[M, T]`. So a
    document of one chunk gives what `FixedHeadCausalLMPreprocessor` makes of
    its text.
    """

    def __init__(
        self,
        config: CausalLMConfig,
        global_batch_size: int,
        tokenizer: FixedHeadTokenizer,
        seed: int,
        packed: bool = True,
    ):
        check_at_least(2, sequence_length=config.sequence_length)
        super().__init__(
            config,
            global_batch_size,
            seed,
            # One is [CLS]; the model does not read [SEP].
            config.sequence_length - 1,
        )
        self.tokenizer = tokenizer
        self._length = None if packed else config.sequence_length

    def _examples(self, window, chunks, indices):
        start, end, document = chunk_bounds(window, chunks)
        ends = end == tf.gather(window.document_starts, document + 1)
        column = tf.ones_like(chunks, tf.int32)[:, tf.newaxis]  # [M, 1]
        rows = tf.concat(
            [
                column * self.tokenizer.start_token_id,
                texts(window, start, end),
                tf.ragged.boolean_mask(
                    column * self.tokenizer.end_token_id, ends[:, tf.newaxis]
                ),
            ],
            axis=1,
        )
        shape = [None, self._length]
        inputs, pad = rows[:, :-1], self.tokenizer.pad_token_id
        return {
            "token_ids": inputs.to_tensor(pad, shape=shape),
            "padding_mask": tf.ones_like(inputs).to_tensor(shape=shape),
            "labels": rows[:, 1:].to_tensor(pad, shape=shape),
        }


class LanguageModelTask(CorpusTask):
    """Language modeling as in Bhojanapalli et al. 2020, section 4.1.

    Predicts each token of a text, and the end of each document, from the
    tokens before it in its chunk. Perplexity per word does not depend on the
    vocabulary: words are separated by white space, and each end of a document
    counts as one, as in the One Billion Word Benchmark (Chelba et al. 2013),
    which keeps upper case. With fewer `evaluation_examples` than there are it
    is an estimate, because pieces per word are those of all held-out text.
    """

    part = "language_model"
    metrics = ("accuracy",)
    inputs = ("token_ids", "padding_mask")
    model: FixedHeadCausalLM

    def __init__(self, config: LanguageModelConfig):
        super().__init__(config)
        language_model, heldout = config.language_model, self._corpus.heldout
        if any(shard.words is None for shard in heldout):
            raise ValueError(
                f"`data` {str(config.run.data)!r} does not say how many words "
                "its held-out documents have, which perplexity per word needs. "
                "Prepare the folder again, with --overwrite"
            )
        documents = sum(len(shard.document_lengths) for shard in heldout)
        pieces = sum(int(shard.document_lengths.sum()) for shard in heldout)
        words = sum(shard.words or 0 for shard in heldout)
        # Ends are pieces and words.
        self._pieces_per_word = (pieces + documents) / (words + documents)
        self._preprocessor = FixedHeadCausalLMPreprocessor(
            self._tokenizer, sequence_length=language_model.sequence_length
        )
        self._batches = LanguageModelBatches(
            language_model,
            config.training.global_batch_size,
            self._tokenizer,
            config.training.seed,
            packed=config.run.packed,
        )

    def build(self) -> None:
        model, init = self.config.model, self.config.language_model.init
        self.model = FixedHeadCausalLM(
            make_encoder(
                model, len(self._corpus.vocabulary), num_segments=1, causal=True
            ),
            preprocessor=self._preprocessor,
        )
        if init is not None:
            self._start_from(
                read_task(init, "init", FixedHeadCausalLM, dtype=model.dtype)
            )

    def _sums(self, batch, training):
        logits, packing = self.compute(  # [P, V]
            self.model.predict_packed, batch, training
        )
        # Each token that the model reads has one to predict.
        losses, hits = summed_losses_and_hits(
            logits, batch["labels"], packing, batch["padding_mask"]
        )
        return {"loss": losses, "accuracy": hits}

    def flops(self, totals: dict[str, float]) -> float:
        backbone = self.model.backbone
        logits = 2 * backbone.hidden_dim * backbone.vocabulary_size
        encoder = super().flops(totals) or 0.0
        return encoder + 3 * totals["tokens"] * logits

    def attention_inputs(self, batch: dict) -> tuple:
        # The backbone, unlike the model, reads segments.
        segments = tf.zeros_like(batch["token_ids"])
        return self.model, {**self.model_inputs(batch), "segment_ids": segments}

    def figures(self, outputs: dict) -> dict[str, float]:
        figures = super().figures(outputs)
        loss = figures["heldout_loss"]
        return figures | {
            "heldout_perplexity_per_word_piece": math.exp(loss),
            "heldout_perplexity_per_word": math.exp(
                loss * self._pieces_per_word
            ),
        }
