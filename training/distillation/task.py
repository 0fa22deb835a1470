"""The distillation task: a smaller embedder learns a larger one's embeddings.

Shape letters: M texts of this replica, C texts of all replicas, D embedding
size of the student, E that of the teacher, T sequence length, N texts of an
evaluation.
"""

import dataclasses
import hashlib

import keras
import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
)
from keras_fixedhead.losses import relation_loss, similarity_loss
from keras_fixedhead.principal_components import principal_components
from training.corpus.texts import read_texts, tokenized
from training.distillation.configs import DistillConfig
from training.distillation.teacher import teacher_embeddings
from training.engine.encoder import make_encoder
from training.engine.global_batch import evaluation_batches, training_batches
from training.engine.preset import preset_sha256, read_embedder
from training.engine.sequences import SequenceTask
from training.engine.strategy import worker_number

_NEIGHBOURS = 10


class DistillationTask(SequenceTask):
    """Training on a teacher's embeddings of texts.

    Args:
        config: The run.

    Raises:
        OSError: The teacher or the texts cannot be read.
        ValueError: A value of the configuration is wrong, or the teacher's
            preset or the texts do not fit.
    """

    def __init__(self, config: DistillConfig):
        self.config = config
        distillation, model = config.distillation, config.model
        if config.run.accumulation_steps != 1:
            raise ValueError(
                "`accumulation_steps` must be 1: similarities are those of "
                "the whole batch. "
                f"Received: {config.run.accumulation_steps}"
            )
        if not 2 < distillation.sequence_length <= model.max_sequence_length:
            raise ValueError(
                "`sequence_length` must be over 2 (the special tokens) and "
                f"at most max_sequence_length={model.max_sequence_length}. "
                f"Received: {distillation.sequence_length}"
            )
        weights = self._weights
        if min(weights.values()) < 0:
            raise ValueError(
                f"Weights of losses must be at least 0. Received: {weights}"
            )
        if not (weights["embedding"] or weights["similarity"]):
            raise ValueError(
                "`embedding_weight` or `similarity_weight` must be over 0: "
                "attention alone does not train what comes after it. "
                f"Received: {weights}"
            )
        if distillation.similarity_temperature <= 0:
            raise ValueError(
                "`similarity_temperature` must be positive. "
                f"Received: {distillation.similarity_temperature}"
            )
        self._sha256 = preset_sha256(distillation.teacher, "teacher")
        self._teacher = read_embedder(distillation.teacher, "teacher")
        self._check_teacher()
        self.warnings = []
        read = read_texts(config.run.data, say=self.warnings.append)
        # One that is there twice would be held out and trained on.
        texts = list(dict.fromkeys(read))
        if len(texts) < len(read):
            self.warnings.append(
                f"{config.run.data}: {len(read) - len(texts):,} texts that "
                "repeat another, left out"
            )
        held_out = distillation.validation_texts
        if not 1 < held_out < len(texts):
            raise ValueError(
                "`validation_texts` must be over 1 and smaller than the "
                f"{len(texts)} different texts there are. Received: {held_out}"
            )
        rng = np.random.default_rng(config.training.seed)
        self._texts = [texts[i] for i in rng.permutation(len(texts))]

    @property
    def _weights(self):
        distillation = self.config.distillation
        return {
            name: getattr(distillation, f"{name}_weight")
            for name in ("embedding", "similarity", "attention")
        }

    @property
    def metrics(self):
        return tuple(
            f"{name}_loss" for name, weight in self._weights.items() if weight
        )

    @property
    def settings(self):
        settings = dataclasses.asdict(self.config.distillation)
        for name in ("teacher", "cache"):
            del settings[name]
        return {
            "distillation": settings,
            "teacher_sha256": self._sha256,
            "data_sha256": hashlib.sha256(
                "\n".join(self._texts).encode()
            ).hexdigest(),
        }

    def _check_teacher(self):
        distillation, model = self.config.distillation, self.config.model
        teacher = self._teacher.backbone
        preprocessor = self._teacher.preprocessor
        preprocessor.prompt(distillation.prompt)
        if preprocessor.sequence_length < distillation.sequence_length:
            raise ValueError(
                "`sequence_length` must be at most that of the teacher, "
                f"{preprocessor.sequence_length}. "
                f"Received: {distillation.sequence_length}"
            )
        if distillation.attention_weight:
            widths = [
                sum(teacher.transformer_layers[-1].attention.head_sizes),
                model.num_heads
                * (model.head_size or model.max_sequence_length),
            ]
            heads = distillation.relation_heads
            if heads < 1 or any(width % heads for width in widths):
                raise ValueError(
                    "`relation_heads` must divide the width of all heads of "
                    f"the last block of the teacher, {widths[0]}, and of the "
                    f"student, {widths[1]}. "
                    f"Received: {heads}"
                )

    def build(self):
        distillation, model = self.config.distillation, self.config.model
        preprocessor = self._teacher.preprocessor
        self.model = FixedHeadTextEmbedder(
            make_encoder(
                model,
                self._teacher.backbone.vocabulary_size,
                num_segments=self._teacher.backbone.num_segments,
            ),
            preprocessor=FixedHeadTextEmbedderPreprocessor(
                preprocessor.tokenizer,
                # Positions further on are not trained.
                sequence_length=distillation.sequence_length,
                prompts=preprocessor.prompts or None,
            ),
            pooling_mode=self._teacher.pooling_mode,
        )
        if distillation.copy_embeddings:
            _copy_embeddings(self._teacher.backbone, self.model.backbone)
        self._targets = self._embeddings()
        self._components = tf.constant(
            principal_components(self._targets, model.hidden_dim), tf.float32
        )
        # What runs in every update has to be on every device.
        self._teacher = (
            read_embedder(distillation.teacher, "teacher")
            if distillation.attention_weight
            else None
        )

    def _embeddings(self):
        """The teacher's, float32 `[texts, E]`."""
        distillation, run = self.config.distillation, self.config.run
        return teacher_embeddings(
            self._teacher,
            self._texts,
            distillation.cache or run.workdir / "teacher",
            {
                "teacher": self._sha256,
                "prompt": distillation.prompt,
                "sequence_length": distillation.sequence_length,
            },
            worker=worker_number(tf.distribute.get_strategy()),
            prompt=distillation.prompt,
            sequence_length=distillation.sequence_length,
        )

    def training_dataset(self, context, first_step):
        training = self.config.training
        held_out = self.config.distillation.validation_texts
        return training_batches(
            self._batch(slice(held_out, None)),
            len(self._texts) - held_out,
            training.global_batch_size,
            training.seed,
            first_step,
            context,
        )

    def _batch(self, part):
        """Makes batches of numbers of a part's texts, int tensors `[M]`."""
        distillation, run = self.config.distillation, self.config.run
        # A GPU has better use for its memory.
        with tf.device("cpu"):
            texts = tf.constant(self._texts[part])
            targets = tf.constant(self._targets[part])

        def batch(numbers):
            features = tokenized(
                self.model.preprocessor,
                tf.gather(texts, numbers),
                distillation.prompt,
                distillation.sequence_length,
                fixed_size=not run.packed,
            )
            return {
                **features,
                "teacher": tf.gather(targets, numbers),
                "index": numbers,
            }

        return batch

    def loss(self, batch, totals):
        weights = self._weights
        inputs = self.model_inputs(batch)
        fixed_size = not self.config.run.packed
        embeddings, projections = self.model.embed_packed(
            inputs,
            training=True,
            fixed_size=fixed_size,
            return_projections=True,
        )
        teacher = tf.cast(batch["teacher"], embeddings.dtype)
        losses = {}
        if weights["embedding"]:
            losses["embedding"] = 1 - self._cosines(embeddings, teacher)
        if weights["similarity"]:
            losses["similarity"] = self._similarity_loss(embeddings, teacher)
        if weights["attention"]:
            _, relations = self._teacher.embed_packed(
                inputs, fixed_size=fixed_size, return_projections=True
            )
            losses["attention"] = sum(
                relation_loss(
                    projection,
                    # A float32 teacher may have a float64 student.
                    tf.cast(
                        tf.stop_gradient(relations[name]), embeddings.dtype
                    ),
                    inputs["padding_mask"],
                    self.config.distillation.relation_heads,
                )
                for name, projection in projections.items()
            ) / len(projections)
        shares = {
            name: tf.reduce_sum(loss) / tf.cast(totals["examples"], loss.dtype)
            for name, loss in losses.items()
        }
        return (
            sum(weights[name] * share for name, share in shares.items()),
            {f"{name}_loss": share for name, share in shares.items()},
        )

    def _similarity_loss(self, embeddings, teacher):
        replica = tf.distribute.get_replica_context()
        # Between workers, `all_gather` takes only what has a device; what
        # comes straight from the data has none.
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
            temperature=self.config.distillation.similarity_temperature,
        )

    def _cosines(self, embeddings, teacher):
        """Cosines `[M]` of embeddings and the teacher's components."""
        targets = tf.matmul(teacher, tf.cast(self._components, teacher.dtype))
        return tf.reduce_sum(
            embeddings * tf.math.l2_normalize(targets, axis=-1), axis=-1
        )

    def flops(self, totals):
        if self.config.distillation.attention_weight:
            return None  # the teacher computes, too
        return super().flops(totals)

    def evaluation_dataset(self, context):
        held_out = self.config.distillation.validation_texts
        return evaluation_batches(
            self._batch(slice(held_out)),
            held_out,
            self.config.training.global_batch_size,
            context,
        )

    def evaluation_step(self, batch):
        embeddings = self.model.embed_packed(
            self.model_inputs(batch),
            fixed_size=not self.config.run.packed,
        )
        return {
            "index": batch["index"],
            "embeddings": embeddings,
            "cosines": self._cosines(
                embeddings, tf.cast(batch["teacher"], embeddings.dtype)
            ),
        }

    def figures(self, outputs):
        real = outputs["index"] >= 0
        embeddings = outputs["embeddings"][real]
        return {
            "heldout_cosine": float(outputs["cosines"][real].mean()),
            f"heldout_neighbours@{_NEIGHBOURS}": shared_neighbours(
                embeddings, self._targets[outputs["index"][real]]
            ),
        }

    def save(self, folder):
        self.model.save_to_preset(str(folder))


def shared_neighbours(embeddings, teacher, count=_NEIGHBOURS) -> float:
    """The part of each text's nearest texts that is the same as a teacher's.

    Args:
        embeddings: Float array `[N, D]`, of unit length.
        teacher: Float array `[N, E]`, of unit length.
        count: How many are the nearest.

    Returns:
        A number between 0 and 1.
    """
    # What is left of all texts without itself.
    count = min(count, len(embeddings) - 1)
    nearest = []
    for vectors in (embeddings, teacher):
        scores = vectors @ vectors.T
        np.fill_diagonal(scores, -np.inf)
        nearest.append(np.argsort(-scores, axis=1, kind="stable")[:, :count])
    shared = [
        len(np.intersect1d(ours, theirs)) for ours, theirs in zip(*nearest)
    ]
    return float(np.mean(shared)) / count


def _copy_embeddings(teacher, student):
    """Starts the tables with the components of the teacher's tokens."""

    def table(backbone, name):
        layer = getattr(backbone, f"{name}_embedding")
        return (
            layer.position_embeddings
            if name == "position"
            else layer.embeddings
        )

    components = principal_components(
        keras.ops.convert_to_numpy(table(teacher, "token")),
        student.hidden_dim,
    )
    for name in ("token", "position", "segment"):
        rows = keras.ops.convert_to_numpy(table(teacher, name)) @ components
        ours = table(student, name)
        # A student for longer texts starts with the first positions again.
        ours.assign(np.resize(rows, ours.shape))
