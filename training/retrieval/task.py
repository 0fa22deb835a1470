"""The retrieval task: one encoder for queries and documents, contrastive.

Shape letters: M pairs of this replica, C pairs of all replicas, H hard
negatives of a pair, D embedding size, N pairs of an evaluation.
"""

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
from training.engine.configs import check_positive, check_whole_batch
from training.engine.preset import read_tokenizer
from training.engine.task import FinetuningTask, in_order, mean_share
from training.retrieval.batches import PairBatches, Pairs
from training.retrieval.configs import RetrieveConfig

# Positions and segments start this much smaller than BERT's: being the same in
# every text, they would at first drown what tells averages of tokens apart.
_SHARED_SCALE = 0.1

# A learned temperature stays above it, as in CLIP (Radford et al. 2021).
_LOWEST_TEMPERATURE = 0.01


class DualEncoder(keras.layers.Layer):
    """An embedder shared by queries and documents, and a temperature."""

    def __init__(
        self,
        embedder: FixedHeadTextEmbedder,
        temperature: float,
        learn_temperature: bool,
    ):
        super().__init__(dtype=embedder.backbone.dtype_policy)
        self.embedder = embedder
        self.log_temperature = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(np.log(temperature)),
            trainable=learn_temperature,
            name="log_temperature",
        )
        self.built = True

    @property
    def temperature(self) -> tf.Tensor:
        """The scalar that divides scores."""
        return keras.ops.maximum(
            keras.ops.exp(self.log_temperature), _LOWEST_TEMPERATURE
        )


class RetrievalTask(FinetuningTask):
    """Contrastive training on pairs, with negatives from the whole batch."""

    part = "retrieval"
    counts = ("examples",)
    model: DualEncoder

    def __init__(self, config: RetrieveConfig):
        super().__init__(config)
        self._check_options()
        options, data = self._options, config.run.data
        self.metrics = [f"loss_d{size}" for size in options.matryoshka_dims]
        self._preprocessor = self._make_preprocessor()
        pairs = Pairs.of(read_jsonl(data / "train.jsonl"))
        if options.hard_negatives and not any(pairs.negative_keys):
            raise ValueError(
                "`hard_negatives` must be 0: no pair of the data has "
                f"`negatives`. Received: {options.hard_negatives}"
            )
        seed = config.training.seed
        self._training, self._validation = pairs.split(
            options.validation_pairs, seed
        )
        left_out = len(pairs) - len(self._training) - len(self._validation)
        if left_out:
            self.warnings = [
                f"{left_out:,} of {len(pairs):,} pairs are left out: "
                "their document is set aside for validation, but "
                f"`validation_pairs`={options.validation_pairs} has no room "
                "for them"
            ]
        self._batches = PairBatches(
            config.training.global_batch_size,
            self._preprocessor,
            seed,
            config.run.packed,
            config=options,
        )

    def _check_options(self):
        options, start = self._options, self._start
        if start is not None and start.embedding_dim is not None:
            raise ValueError(
                "`init` must be a preset whose embeddings are not cut. "
                "Received: a preset with "
                f"embedding_dim={start.embedding_dim}"
            )
        self._projection_dim = start and start.projection_dim
        self._size = self._projection_dim or self._model.hidden_dim
        check_whole_batch(self.config.run.accumulation_steps, "negatives")
        self._check_lengths(
            2,
            query_length=options.query_length,
            document_length=options.document_length,
        )
        check_positive(temperature=options.temperature)
        sizes = options.matryoshka_dims
        if len(set(sizes)) < len(sizes) or not all(
            0 < size < self._size for size in sizes
        ):
            raise ValueError(
                "`matryoshka_dims` must be different sizes below that of an "
                f"embedding, {self._size}. Received: {sizes}"
            )

    def _make_preprocessor(self):
        options = self._options
        tokenizer = read_tokenizer(
            self._start,
            self.config.run.data / "vocabulary.txt",
            options.lowercase,
        )
        prompts = {"query": "", "document": ""}
        if self._start is not None:
            prompts |= self._start.preprocessor.prompts
        for name in ("query", "document"):
            if (prompt := getattr(options, f"{name}_prompt")) is not None:
                prompts[name] = prompt
        return FixedHeadTextEmbedderPreprocessor(
            tokenizer,
            # Later positions are not trained.
            sequence_length=max(options.query_length, options.document_length),
            prompts=prompts if any(prompts.values()) else None,
        )

    @property
    def data_sha256(self) -> dict[str, str]:
        paths = [self.config.run.data / "train.jsonl"]
        if self._start is None:
            paths.append(self.config.run.data / "vocabulary.txt")
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in paths
        }

    def build(self) -> None:
        options, start = self._options, self._start
        backbone = self._make_encoder()
        if start is None:
            for table in (
                backbone.position_embedding.position_embeddings,
                backbone.segment_embedding.embeddings,
            ):
                table.assign(table.value * _SHARED_SCALE)
        pooling_mode = options.pooling_mode or (start and start.pooling_mode)
        embedder = FixedHeadTextEmbedder(
            backbone,
            preprocessor=self._preprocessor,
            pooling_mode=pooling_mode or "mean",
            projection_dim=self._projection_dim,
        )
        if start is not None and embedder.projection is not None:
            embedder.projection.kernel.assign(start.projection.kernel)
        self.model = DualEncoder(
            embedder, options.temperature, options.learn_temperature
        )

    def totals(self, batch: dict) -> dict[str, tf.Tensor]:
        return {"examples": tf.cast(tf.shape(batch["keys"])[0], tf.float32)}

    def flops(self, totals: dict[str, float]) -> None:
        return None  # tokens are not counted

    def _embed(self, inputs, training=False):
        return self.compute(self.model.embedder.embed_packed, inputs, training)

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        replica = tf.distribute.get_replica_context()

        def gathered(values):
            # [M, ...] -> [C, ...]; gradients flow back to each replica.
            return replica.all_gather(values, axis=0)

        queries = self._embed(batch["query"], training=True)
        documents = self._embed(batch["document"], training=True)
        embeddings = {
            "queries": queries,
            "documents": documents,
            "candidate_queries": gathered(queries),
            "candidate_documents": gathered(documents),
        }
        # Between workers, `all_gather` takes only tensors on a device, which
        # those straight from the dataset are not.
        keys = tf.identity(batch["keys"])
        excluded_negatives = None
        if "negative" in batch:
            # [M H, D] -> [C H, D]
            negatives = self._embed(batch["negative"], training=True)
            embeddings["negatives"] = gathered(negatives)
            negative_keys = gathered(tf.identity(batch["negative_keys"]))[None]
            excluded_negatives = (negative_keys < 0) | (
                negative_keys == keys[:, 1:]
            )  # [M, C H]
        size = tf.shape(queries)[0]
        labels = replica.replica_id_in_sync_group * size + tf.range(size)
        excluded = same_keys(keys, gathered(keys))

        def share(dimension):
            """Returns this replica's part of the mean loss at a dimension."""
            cut = {k: _cut(rows, dimension) for k, rows in embeddings.items()}
            losses = symmetric_contrastive_loss(
                **cut,
                labels=labels,
                temperature=self.model.temperature,
                excluded=excluded,
                excluded_negatives=excluded_negatives,
            )
            return mean_share(losses, totals["examples"])

        whole = share(self._size)
        cut = [share(size) for size in self._options.matryoshka_dims]
        loss = tf.add_n([whole, *cut]) / (1 + len(cut))
        return loss, dict(zip(self.metrics, cut, strict=True))

    def evaluation_step(self, batch: dict) -> dict[str, tf.Tensor]:
        return {
            "index": batch["index"],
            "query": self._embed(batch["query"]),
            "document": self._embed(batch["document"]),
        }

    def attention_inputs(self, batch: dict) -> tuple:
        return self.model.embedder, batch["document"]

    def figures(self, outputs: dict) -> dict[str, float]:
        outputs = in_order(outputs)
        rows = outputs["query"], outputs["document"]
        keys = self._validation.keys
        found = retrieval_figures(*rows, keys)
        for size in self._options.matryoshka_dims:
            queries, documents = (np.array(_cut(x, size)) for x in rows)
            cut = retrieval_figures(queries, documents, keys)
            found |= {f"{name}_d{size}": value for name, value in cut.items()}
        return found

    def save(self, folder: pathlib.Path) -> None:
        self.model.embedder.save_to_preset(str(folder))


def _cut(embeddings, size):
    """Returns the first dimensions of each row, at unit length."""
    if size == embeddings.shape[-1]:
        return embeddings
    return keras.ops.normalize(embeddings[:, :size], axis=-1, order=2)


def retrieval_figures(
    queries: np.ndarray, documents: np.ndarray, keys: np.ndarray
) -> dict[str, float]:
    """Measures how well queries `[N, D]` find the documents in their rows.

    Documents with the same query or document key (`keys` `[N, 2]`, as in
    `Pairs`) do not count as wrong.
    """
    scores = queries @ documents.T  # [N, N]
    duplicate = (keys[:, None, :] == keys[None, :, :]).any(axis=-1)
    np.fill_diagonal(duplicate, False)
    # Best first, and duplicates last.
    ranking = np.argsort(np.where(duplicate, np.inf, -scores), axis=1)[:, :10]
    relevant = [[i] for i in range(len(queries))]
    figures = measure_rankings(ranking, relevant, ("R@1", "R@10", "RR@10"))
    return dict(zip(("recall@1", "recall@10", "mrr@10"), figures.values()))
