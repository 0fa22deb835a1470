"""The retrieval task: one encoder for queries and documents, contrastive.

Shape letters: M pairs of this replica, C pairs of all replicas, H hard
negatives of a pair, D embedding size, N pairs of an evaluation.
"""

import dataclasses
import hashlib
import pathlib

import keras
import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
)
from keras_fixedhead.losses import same_keys, symmetric_contrastive_loss
from keras_fixedhead.metrics import measure_rankings
from training.corpus.pairs import read_jsonl
from training.engine.encoder import (
    copy_encoder,
    make_encoder,
    read_start,
    read_tokenizer,
)
from training.engine.preset import preset_sha256
from training.engine.task import Task
from training.retrieval.batches import PairBatches, Pairs
from training.retrieval.configs import RetrieveConfig

# Positions and segments start this much smaller than BERT's: they are the same
# in every text, and in an average of tokens they would at first drown what
# tells texts apart.
_SHARED_SCALE = 0.1

# A learned temperature stays above it, as in CLIP (Radford et al. 2021).
_LOWEST_TEMPERATURE = 0.01


class DualEncoder(keras.layers.Layer):
    """An embedder shared by queries and documents, and a temperature.

    Args:
        embedder: A `FixedHeadTextEmbedder`.
        temperature: Float, divides the scores.
        learn_temperature: Bool, whether it trains.
        packed: Bool, whether padding is left out of the computation.
    """

    def __init__(self, embedder, temperature, learn_temperature, packed):
        super().__init__(dtype=embedder.backbone.dtype_policy)
        self.embedder = embedder
        self.packed = packed
        self.log_temperature = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(np.log(temperature)),
            trainable=learn_temperature,
            name="log_temperature",
        )
        self.built = True

    @property
    def temperature(self):
        """Scalar tensor, what the scores are divided by."""
        return keras.ops.maximum(
            keras.ops.exp(self.log_temperature), _LOWEST_TEMPERATURE
        )

    def call(self, inputs, training=False):
        """Embeds a batch of one side: inputs `[M, T]` to `[M, D]`."""
        if self.packed:
            return self.embedder.embed_packed(inputs, training=training)
        return self.embedder(inputs, training=training)


class RetrievalTask(Task):
    """Contrastive training on pairs, with negatives from the whole batch.

    Reads `train.jsonl` from the data folder, and `vocabulary.txt` where there
    is no preset to start from.

    Args:
        config: The run.

    Raises:
        OSError: A file of the data folder is missing.
        ValueError: A line of it, or a value of the configuration, is wrong.
    """

    counts = ("examples",)

    def __init__(self, config: RetrieveConfig):
        self._config = config
        if config.run.accumulation_steps != 1:
            raise ValueError(
                "`accumulation_steps` must be 1: negatives are those of the "
                "whole batch. "
                f"Received: {config.run.accumulation_steps}"
            )
        self._start, self._model = read_start(config.model)
        cut = self._start and self._start.embedding_dim
        if cut is not None:
            raise ValueError(
                f"`init` {str(config.model.init)!r} must be a preset that is "
                f"not cut: its embeddings have {cut} of "
                f"{self._model.hidden_dim} numbers."
            )
        retrieval, model = config.retrieval, self._model
        for name in ("query_length", "document_length"):
            if not 2 < getattr(retrieval, name) <= model.max_sequence_length:
                raise ValueError(
                    f"`{name}` must be over 2 (the special tokens) and at "
                    f"most max_sequence_length={model.max_sequence_length}. "
                    f"Received: {getattr(retrieval, name)}"
                )
        if retrieval.temperature <= 0:
            raise ValueError(
                "`temperature` must be positive. "
                f"Received: {retrieval.temperature}"
            )
        sizes = retrieval.matryoshka_dims
        if len(set(sizes)) < len(sizes) or not all(
            0 < size < model.hidden_dim for size in sizes
        ):
            raise ValueError(
                "`matryoshka_dims` must be different sizes below "
                f"hidden_dim={model.hidden_dim}. Received: {sizes}"
            )
        self._sizes = (model.hidden_dim, *sizes)
        data = config.run.data
        self._preprocessor = self._make_preprocessor(data, retrieval)
        seed = config.training.seed
        pairs = Pairs.of(read_jsonl(data / "train.jsonl"))
        if retrieval.hard_negatives and not pairs.have_negatives:
            raise ValueError(
                "`hard_negatives` must be 0: no pair of the data has "
                f"`negatives`. Received: {retrieval.hard_negatives}"
            )
        self._training_pairs, self._validation_pairs = pairs.split(
            retrieval.validation_pairs, seed
        )
        used = len(self._training_pairs) + len(self._validation_pairs)
        if used < len(pairs):
            self.warnings = [
                f"{len(pairs) - used:,} of {len(pairs):,} pairs are left out: "
                "their document is set aside for validation, but "
                f"`validation_pairs`={retrieval.validation_pairs} has no room "
                "for them"
            ]
        self._batches = PairBatches(
            retrieval,
            config.training.global_batch_size,
            self._preprocessor,
            seed,
            packed=config.run.packed,
        )

    def _make_preprocessor(self, data, retrieval):
        prompts = {
            "query": retrieval.query_prompt,
            "document": retrieval.document_prompt,
        }
        given = {k: text for k, text in prompts.items() if text is not None}
        tokenizer = read_tokenizer(
            self._start, data / "vocabulary.txt", retrieval.lowercase
        )
        if self._start is not None:
            given = self._start.preprocessor.prompts | given
        prompts = {"query": "", "document": "", **given}
        return FixedHeadTextEmbedderPreprocessor(
            tokenizer,
            # Positions further on are not trained.
            sequence_length=max(
                retrieval.query_length, retrieval.document_length
            ),
            prompts=prompts if any(prompts.values()) else None,
        )

    @property
    def metrics(self):
        return tuple(f"loss_d{size}" for size in self._sizes[1:])

    @property
    def settings(self):
        config = self._config
        model = dataclasses.asdict(config.model)
        init = model.pop("init")
        names = ["train.jsonl"]
        if init is None:
            names.append("vocabulary.txt")
        return {
            "model": model,
            "init_sha256": init and preset_sha256(init, "init"),
            "retrieval": dataclasses.asdict(config.retrieval),
            "data_sha256": {
                name: hashlib.sha256(
                    (config.run.data / name).read_bytes()
                ).hexdigest()
                for name in names
            },
        }

    def build(self):
        model, retrieval = self._model, self._config.retrieval
        pooling_mode = retrieval.pooling_mode
        if self._start is None:
            backbone = make_encoder(
                model, self._preprocessor.tokenizer.vocabulary_size()
            )
            for table in (
                backbone.position_embedding.position_embeddings,
                backbone.segment_embedding.embeddings,
            ):
                table.assign(table.value * _SHARED_SCALE)
        else:
            backbone = copy_encoder(self._start.backbone, model)
            pooling_mode = pooling_mode or self._start.pooling_mode
        embedder = FixedHeadTextEmbedder(
            backbone,
            preprocessor=self._preprocessor,
            pooling_mode=pooling_mode or "mean",
        )
        self.model = DualEncoder(
            embedder,
            retrieval.temperature,
            retrieval.learn_temperature,
            self._config.run.packed,
        )

    def training_dataset(self, context, first_step):
        return self._batches.training(self._training_pairs, context, first_step)

    def totals(self, batch):
        return {"examples": tf.cast(tf.shape(batch["keys"])[0], tf.float32)}

    def loss(self, batch, totals):
        queries = self.model(batch["query"], training=True)
        documents = self.model(batch["document"], training=True)
        # Between workers, `all_gather` takes only what has a device; what
        # comes straight from the data has none.
        keys = tf.identity(batch["keys"])
        replica = tf.distribute.get_replica_context()

        def gathered(values):
            # [M, ...] -> [C, ...], through which gradients flow back to the
            # replicas the candidates are from
            return replica.all_gather(values, axis=0)

        candidate_queries, candidate_documents = map(
            gathered, (queries, documents)
        )
        size = tf.shape(queries)[0]
        labels = replica.replica_id_in_sync_group * size + tf.range(size)
        negatives = excluded_negatives = None
        if "negative" in batch:
            # [M H, D] -> [C H, D]
            negatives = gathered(self.model(batch["negative"], training=True))
            negative_keys = gathered(tf.identity(batch["negative_keys"]))
            excluded_negatives = (negative_keys[None, :] < 0) | (
                negative_keys[None, :] == keys[:, 1:]
            )  # [M, C H]
        excluded = same_keys(keys, gathered(keys))

        def share(size):
            """This replica's part of the mean loss, of so many numbers."""
            losses = symmetric_contrastive_loss(
                *(
                    _cut(rows, size)
                    for rows in (
                        queries,
                        documents,
                        candidate_queries,
                        candidate_documents,
                    )
                ),
                labels=labels,
                temperature=self.model.temperature,
                excluded=excluded,
                negatives=None if negatives is None else _cut(negatives, size),
                excluded_negatives=excluded_negatives,
            )
            total = tf.reduce_sum(losses)
            return total / tf.cast(totals["examples"], total.dtype)

        shares = [share(size) for size in self._sizes]
        return tf.add_n(shares) / len(shares), dict(
            zip(self.metrics, shares[1:], strict=True)
        )

    def evaluation_dataset(self, context):
        return self._batches.evaluation(self._validation_pairs, context)

    def evaluation_step(self, batch):
        return {
            "index": batch["index"],
            "query": self.model(batch["query"]),
            "document": self.model(batch["document"]),
        }

    def attention_inputs(self, batch):
        return self.model.embedder, batch["document"]

    def figures(self, outputs):
        real = outputs["index"] >= 0
        keys = self._validation_pairs.keys[outputs["index"][real]]
        queries, documents = outputs["query"][real], outputs["document"][real]
        found = retrieval_figures(queries, documents, keys)
        for size in self._sizes[1:]:
            cut = retrieval_figures(
                np.array(_cut(queries, size)),
                np.array(_cut(documents, size)),
                keys,
            )
            found |= {f"{name}_d{size}": value for name, value in cut.items()}
        return found

    def save(self, folder: pathlib.Path):
        self.model.embedder.save_to_preset(str(folder))


def _cut(embeddings, size):
    """The first numbers of each row, of length 1 again."""
    if size == embeddings.shape[-1]:
        return embeddings
    return keras.ops.normalize(embeddings[:, :size], axis=-1, order=2)


def retrieval_figures(queries, documents, keys) -> dict[str, float]:
    """How well each query finds its own document among all.

    Args:
        queries: Float array `[N, D]`.
        documents: Float array `[N, D]`, row i answers query i.
        keys: Integer array `[N, 2]` as in `Pairs`: equal documents, and
            documents of equal queries, do not count as wrong.

    Returns:
        `recall@1`, `recall@10` and `mrr@10`, shares between 0 and 1.
    """
    scores = queries @ documents.T  # [N, N]
    duplicate = (keys[:, None, :] == keys[None, :, :]).any(axis=-1)
    np.fill_diagonal(duplicate, False)
    # Best first, and duplicates last.
    ranking = np.argsort(np.where(duplicate, np.inf, -scores), axis=1)[:, :10]
    relevant = [[i] for i in range(len(queries))]
    figures = measure_rankings(ranking, relevant, ("R@1", "R@10", "RR@10"))
    return dict(zip(("recall@1", "recall@10", "mrr@10"), figures.values()))
