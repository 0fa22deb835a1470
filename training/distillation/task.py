"""The distillation task: a smaller embedder learns a larger one's embeddings.

Shape letters: M texts of this replica, C texts of all replicas, D embedding
size of the student, E that of the teacher, N texts of an evaluation, P real
tokens of a batch.
"""

import hashlib
import itertools
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
)
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.losses import (
    attention_loss,
    similarity_loss,
    state_loss,
)
from keras_fixedhead.metrics import shared_neighbours
from keras_fixedhead.retrieval import principal_components
from training.corpus.texts import read_texts
from training.distillation.configs import DistillConfig
from training.distillation.random_texts import random_texts
from training.distillation.teacher import (
    TaughtBatches,
    TaughtTexts,
    copy_embeddings,
    read_embeddings,
    teacher_embeddings,
)
from training.engine.configs import (
    check_at_least,
    check_positive,
    check_whole_batch,
)
from training.engine.preset import (
    Origin,
    copy_encoder,
    make_encoder,
    preset_sha256,
    read_embedder,
    read_origin,
    write_preset,
)
from training.engine.strategy import worker_number
from training.engine.task import FinetuningTask, in_order, mean_share

_NEIGHBOURS = 10
# Texts to which the matrix after pooling is fitted, before and after training.
_FITTED_TEXTS = 4096
_REFITTED_TEXTS = 32_768
# These losses need the teacher itself and a student shrunk from it.
_INNER = ("state_weight", "attention_weight")
_RIDGE = 1e-3  # relative to the mean square of the student's dimensions


class DistillationTask(FinetuningTask):
    """Training on a teacher's embeddings of texts, and on its states."""

    part = "distillation"
    sources = ("teacher", "teacher_embeddings", "cache")
    model: FixedHeadTextEmbedder

    def __init__(self, config: DistillConfig):
        super().__init__(config)
        self._check_options()
        options, start = self._options, self._start
        self._embedder: Any = None
        self._origin: Origin | None = None
        if options.teacher is not None:
            self._sha256 = preset_sha256(options.teacher, "teacher")
            self._embedder = read_embedder(options.teacher, "teacher")
        # Whose tokenizer, pooling and prompts the student takes.
        self._like = self._embedder if start is None else start
        for name, model in (("teacher", self._embedder), ("init", start)):
            if model is None:
                continue
            model.preprocessor.prompt(options.prompt)  # raises if there is none
            longest = model.preprocessor.sequence_length
            if longest < options.sequence_length:
                raise ValueError(
                    f"`sequence_length` must be at most that of the {name}, "
                    f"{longest}. Received: {options.sequence_length}"
                )
        self.metrics = ["embedding_loss", "similarity_loss"]
        inner = [name for name in _INNER if getattr(options, name)]
        if inner and config.model.init is not None:
            self.metrics += [name.replace("weight", "loss") for name in inner]
            self._origin = read_origin(config.model.init, self._sha256)
        self.warnings = []
        read = read_texts(config.run.data, say=self.warnings.append)
        # A repeated text could be both held out and trained on.
        texts = list(dict.fromkeys(read))
        if len(texts) < len(read):
            self.warnings.append(
                f"{config.run.data}: {len(read) - len(texts):,} repeated "
                "texts left out"
            )
        held_out = options.validation_texts
        if not 1 < held_out < len(texts):
            raise ValueError(
                "`validation_texts` must be over 1 and smaller than the "
                f"{len(texts)} different texts there are. Received: {held_out}"
            )
        rng = np.random.default_rng(config.training.seed)
        self._order = rng.permutation(len(texts))
        self._unordered = [texts]
        if options.random_texts:
            tokenizer = self._embedder.preprocessor.tokenizer
            drawn = random_texts(
                tokenizer.get_vocabulary(),
                options.random_texts,
                tokenizer.suffix_indicator,
            )
            self._unordered.append(drawn)
            # None is held out.
            first, rest = np.split(self._order, [held_out])
            added = np.arange(len(texts), len(texts) + len(drawn))
            rest = rng.permutation(np.append(rest, added))
            self._order = np.append(first, rest)
        unordered = list(itertools.chain(*self._unordered))
        self._texts = [unordered[i] for i in self._order]
        self._given = None
        if options.teacher_embeddings is not None:
            given, self._sha256 = read_embeddings(
                options.teacher_embeddings, read
            )
            rows = {text: row for row, text in enumerate(read)}
            self._given = given[[rows[text] for text in self._texts]]

    def _check_options(self):
        options = self._options
        check_whole_batch(self.config.run.accumulation_steps, "similarities")
        self._check_lengths(2, sequence_length=options.sequence_length)
        weights = options.embedding_weight, options.similarity_weight
        if min(weights) < 0 or not any(weights):
            raise ValueError(
                "`embedding_weight` and `similarity_weight` must be at least "
                f"0, and not both 0. Received: {weights}"
            )
        check_positive(similarity_temperature=options.similarity_temperature)
        names = (*_INNER, "random_texts")
        check_at_least(0, **{name: getattr(options, name) for name in names})
        if (options.teacher is None) == (options.teacher_embeddings is None):
            raise ValueError(
                "Pass one of `teacher` and `teacher_embeddings`. Received: "
                f"{options.teacher} and {options.teacher_embeddings}"
            )
        for name in ("teacher_embeddings", *_INNER):
            if self.config.model.init is None and getattr(options, name):
                raise ValueError(
                    f"`{name}` needs `init`, the preset to start from. "
                    "Received: init=None"
                )
        for name in names:
            if options.teacher is None and getattr(options, name):
                raise ValueError(
                    f"`{name}` needs `teacher` itself, not only its embeddings "
                    "of `data`. Received: teacher=None"
                )

    @property
    def data_sha256(self) -> str:
        return hashlib.sha256("\n".join(self._texts).encode()).hexdigest()

    @property
    def settings(self) -> dict:
        settings = {**super().settings, "teacher_sha256": self._sha256}
        # Of earlier versions, whose runs go on.
        earlier = {"relation_heads": 1, "copy_embeddings": True}
        settings["distillation"] |= earlier
        if self.config.model.init is not None:
            # Earlier versions had no matrix, or also matched the state of the
            # embeddings; their runs cannot go on.
            settings["projected"] = "blocks matched"
        return settings

    def build(self) -> None:
        options, like, teacher = self._options, self._like, self._embedder
        if self._start is None:
            encoder = make_encoder(
                self._model,
                teacher.backbone.vocabulary_size,
                num_segments=teacher.backbone.num_segments,
            )
        else:
            encoder = copy_encoder(self._start.backbone, self._model)
        self.model = FixedHeadTextEmbedder(
            encoder,
            preprocessor=FixedHeadTextEmbedderPreprocessor(
                like.preprocessor.tokenizer,
                # Later positions are not trained.
                sequence_length=options.sequence_length,
                prompts=like.preprocessor.prompts or None,
            ),
            pooling_mode=like.pooling_mode,
        )
        targets = self._given
        if targets is None:
            # In the order of the sources, which runs of all seeds share.
            rows = [
                teacher_embeddings(
                    teacher,
                    texts,
                    options.cache or self.config.run.workdir / "teacher",
                    self._sha256,
                    options.prompt,
                    options.sequence_length,
                    worker_number(tf.distribute.get_strategy()),
                )
                for texts in self._unordered
            ]
            targets = np.concatenate(rows)[self._order]
        held_out = options.validation_texts
        self._validation, self._training = (
            TaughtTexts(self._texts[part], targets[part])
            for part in (slice(held_out), slice(held_out, None))
        )
        # [E, D]: what loses least of the teacher's embeddings of the data.
        of_data = targets[self._order < len(self._unordered[0])]
        self._components = principal_components(of_data, encoder.hidden_dim)
        if self._start is None:
            copy_embeddings(teacher.backbone, encoder)
        else:
            matrix = self._fitted_matrix(_FITTED_TEXTS)
            self.model = self._with_matrix(matrix @ self._components)
        if self._origin is not None:
            # In the dtype of the run, in which its states are compared.
            self._teacher = copy_encoder(teacher.backbone, self._model)
            self._teacher.trainable = False
        training = self.config.training
        self._batches = TaughtBatches(
            training.global_batch_size,
            self.model.preprocessor,
            training.seed,
            self.config.run.packed,
            options.prompt,
        )
        del self._like, self._start, self._given, self._embedder
        del self._unordered, self._order

    def _with_matrix(self, matrix=None):
        """The student with a matrix `[D, ...]` after pooling, or with none."""
        model = FixedHeadTextEmbedder(
            self.model.backbone,
            self.model.preprocessor,
            self.model.pooling_mode,
            projection_dim=None if matrix is None else matrix.shape[1],
        )
        if matrix is not None:
            model.projection.kernel.assign(matrix)
        return model

    def _fitted_matrix(self, count):
        """Least squares from pooled states to the teacher's, `[D, E]`."""
        training = self._training
        encode = TextEncoder(self._with_matrix(), self._options.sequence_length)
        found = encode(
            training.texts[:count], self._options.prompt, "Fitting the matrix"
        ).astype("float64")
        products = found.T @ found
        ridge = _RIDGE * np.trace(products) / len(products)
        return np.linalg.solve(
            products + ridge * np.eye(len(products)),
            found.T @ training.embeddings[: len(found)],
        )

    def save(self, folder: pathlib.Path) -> None:
        fitted = self.config.model.init is not None
        if fitted:
            # More texts, and the final states: better than the trained one.
            matrix = self._fitted_matrix(_REFITTED_TEXTS)
            self.model.projection.kernel.assign(matrix @ self._components)
        super().save(folder)
        if self._origin is not None:
            self._origin.write(folder)
        if fitted:
            # Of the teacher's size, to search its index.
            embedder = self._with_matrix(matrix)
            # The disk needs room for these weights, too.
            write_preset(
                folder / "query_encoder",
                embedder,
                lambda path: embedder.save_to_preset(str(path)),
            )

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        options = self._options
        embeddings, states, scores = self.compute(
            self.model.embed_packed_states, batch, training=True
        )
        teacher = tf.cast(batch["teacher"], embeddings.dtype)
        examples = totals["examples"]
        losses = {
            "embedding_loss": mean_share(
                1 - self._cosines(embeddings, teacher), examples
            ),
            "similarity_loss": mean_share(
                self._similarity_losses(embeddings, teacher), examples
            ),
        }
        if self._origin is not None:
            inner = self._inner_losses(states, scores, batch)
            for name, values in inner.items():
                if name in self.metrics:
                    losses[name] = mean_share(values, totals["tokens"])
        loss = sum(
            getattr(options, name.replace("loss", "weight")) * value
            for name, value in losses.items()
        )
        return loss, losses

    def _inner_losses(self, states, scores, batch):
        """Returns the mean losses `[P]` of all blocks, by name.

        Zero at padding, which unpacked states include.
        """
        their_states, packing, their_scores = self.compute(
            self._teacher.encode_packed_states,
            batch,
            return_attention_scores=True,
        )
        origin = self._origin
        channels = list(origin.channels)
        numbers = origin.states(self._teacher.num_layers)
        losses = {
            "state_loss": [
                state_loss(
                    ours, tf.gather(their_states[number], channels, axis=-1)
                )
                for ours, number in zip(states[1:], numbers)
            ],
            "attention_loss": [
                packing.pack(attention_loss(ours, their_scores[layer]))
                for ours, layer in zip(scores, origin.layers)
            ],
        }
        real = packing.pack(packing.padding_mask)
        means = {name: tf.add_n(x) / len(x) for name, x in losses.items()}
        return {
            name: tf.where(real, mean, tf.zeros_like(mean))
            for name, mean in means.items()
        }

    def _similarity_losses(self, embeddings, teacher):
        replica = tf.distribute.get_replica_context()
        # Between workers, `all_gather` takes only tensors on a device, which
        # those straight from the dataset are not.
        teacher = tf.identity(teacher)
        # [M, ...] -> [C, ...]
        candidates, teacher_candidates = (
            replica.all_gather(values, axis=0)
            for values in (embeddings, teacher)
        )
        size = tf.shape(embeddings)[0]
        return similarity_loss(
            embeddings,
            candidates,
            teacher,
            teacher_candidates,
            labels=replica.replica_id_in_sync_group * size + tf.range(size),
            temperature=self._options.similarity_temperature,
        )

    def _cosines(self, embeddings, teacher):
        """Returns cosines `[M]` to the teacher's principal components."""
        components = tf.constant(self._components, teacher.dtype)
        targets = tf.matmul(teacher, components)
        return tf.reduce_sum(
            embeddings * tf.math.l2_normalize(targets, axis=-1), axis=-1
        )

    def evaluation_step(self, batch: dict) -> dict[str, tf.Tensor]:
        embeddings = self.compute(self.model.embed_packed, batch)
        teacher = tf.cast(batch["teacher"], embeddings.dtype)
        return {
            "index": batch["index"],
            "embeddings": embeddings,
            "cosines": self._cosines(embeddings, teacher),
        }

    def figures(self, outputs: dict) -> dict[str, float]:
        outputs = in_order(outputs)
        return {
            "heldout_cosine": float(outputs["cosines"].mean()),
            f"heldout_neighbours@{_NEIGHBOURS}": shared_neighbours(
                outputs["embeddings"], self._validation.embeddings, _NEIGHBOURS
            ),
        }
