"""Examples of a language model: chunks of documents, and what follows.

Shape letters: M examples of one replica, T sequence length.
"""

import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from training.causal_lm.configs import CausalLMConfig
from training.corpus.chunks import ChunkBatches, chunk_bounds, texts
from training.engine.configs import check_at_least


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
            global_batch_size,
            seed,
            # One is [CLS]; the model does not read [SEP].
            config.sequence_length - 1,
            config.shuffle_tokens,
            config.evaluation_examples,
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
