"""The distillation task: a smaller embedder learns a larger one's embeddings.

Shape letters: M texts of this replica, C texts of all replicas, D embedding
size of the student, E that of the teacher, N texts of an evaluation.
"""

import dataclasses
import hashlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
)
from keras_fixedhead.losses import relation_loss, similarity_loss
from keras_fixedhead.principal_components import principal_components
from training.corpus.texts import read_texts
from training.distillation.configs import DistillConfig
from training.distillation.teacher import teacher_embeddings
from training.engine.configs import (
    check_length,
    check_positive,
    check_whole_batch,
)
from training.engine.encoder import make_encoder
from training.engine.global_batch import ExampleBatches, tokenized
from training.engine.preset import preset_sha256, read_embedder
from training.engine.strategy import worker_number
from training.engine.task import SequenceTask, in_order, mean_share

_NEIGHBOURS = 10


@dataclasses.dataclass(frozen=True)
class TaughtTexts:
    """Texts, and the teacher's embeddings of them, float32 `[N, E]`."""

    texts: list[str]
    embeddings: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)


@dataclasses.dataclass
class TaughtBatches(ExampleBatches):
    """Batches of the model's inputs, int32 `[M, T]`, and `teacher`, `[M, E]`.

    `prompt` names the prompt to put before each text.
    """

    prompt: str | None = None

    def reader(self, examples: TaughtTexts) -> Callable:
        # A GPU has better use for its memory.
        with tf.device("cpu"):
            texts = tf.constant(examples.texts)
            embeddings = tf.constant(examples.embeddings)

        def batch(numbers):
            features = tokenized(
                self.preprocessor,
                tf.gather(texts, numbers),
                self.prompt,
                self.preprocessor.sequence_length,
                fixed_size=not self.packed,
            )
            return {
                **features,
                "teacher": tf.gather(embeddings, numbers),
                "index": numbers,
            }

        return batch


class DistillationTask(SequenceTask):
    """Training on a teacher's embeddings of texts."""

    model: FixedHeadTextEmbedder

    def __init__(self, config: DistillConfig):
        self.config = config
        self._options = options = config.distillation
        self._weights = {
            "embedding": options.embedding_weight,
            "similarity": options.similarity_weight,
            "attention": options.attention_weight,
        }
        self.metrics = tuple(
            f"{name}_loss" for name, weight in self._weights.items() if weight
        )
        self._check_options()
        self._sha256 = preset_sha256(options.teacher, "teacher")
        self._teacher = read_embedder(options.teacher, "teacher")
        self._check_teacher()
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
        self._texts = [texts[i] for i in rng.permutation(len(texts))]

    def _check_options(self):
        options, weights = self._options, self._weights
        check_whole_batch(self.config.run.accumulation_steps, "similarities")
        check_length(
            self.config.model.max_sequence_length,
            special_tokens=2,
            sequence_length=options.sequence_length,
        )
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
        check_positive(similarity_temperature=options.similarity_temperature)

    def _check_teacher(self):
        options, model = self._options, self.config.model
        preprocessor = self._teacher.preprocessor
        preprocessor.prompt(options.prompt)  # raises if there is none
        if preprocessor.sequence_length < options.sequence_length:
            raise ValueError(
                "`sequence_length` must be at most that of the teacher, "
                f"{preprocessor.sequence_length}. "
                f"Received: {options.sequence_length}"
            )
        if not options.attention_weight:
            return
        last_block = self._teacher.backbone.transformer_layers[-1]
        widths = [
            sum(last_block.attention.head_sizes),
            model.num_heads * (model.head_size or model.max_sequence_length),
        ]
        heads = options.relation_heads
        if heads < 1 or any(width % heads for width in widths):
            raise ValueError(
                "`relation_heads` must divide the width of all heads of the "
                f"last block of the teacher, {widths[0]}, and of the student, "
                f"{widths[1]}. Received: {heads}"
            )

    @property
    def settings(self) -> dict:
        settings = dataclasses.asdict(self._options)
        for name in ("teacher", "cache"):
            del settings[name]
        texts = "\n".join(self._texts).encode()
        return {
            "distillation": settings,
            "teacher_sha256": self._sha256,
            "data_sha256": hashlib.sha256(texts).hexdigest(),
        }

    def build(self) -> None:
        options, model = self._options, self.config.model
        teacher, preprocessor = self._teacher, self._teacher.preprocessor
        self.model = FixedHeadTextEmbedder(
            make_encoder(
                model,
                teacher.backbone.vocabulary_size,
                num_segments=teacher.backbone.num_segments,
            ),
            preprocessor=FixedHeadTextEmbedderPreprocessor(
                preprocessor.tokenizer,
                # Later positions are not trained.
                sequence_length=options.sequence_length,
                prompts=preprocessor.prompts or None,
            ),
            pooling_mode=teacher.pooling_mode,
        )
        if options.copy_embeddings:
            _copy_embeddings(teacher.backbone, self.model.backbone)
        targets = teacher_embeddings(
            teacher,
            self._texts,
            options.cache or self.config.run.workdir / "teacher",
            self._sha256,
            options.prompt,
            options.sequence_length,
            worker_number(tf.distribute.get_strategy()),
        )
        self._components = tf.constant(
            principal_components(targets, model.hidden_dim), tf.float32
        )
        held_out = options.validation_texts
        self._validation, self._training = (
            TaughtTexts(self._texts[part], targets[part])
            for part in (slice(held_out), slice(held_out, None))
        )
        training = self.config.training
        self._batches = TaughtBatches(
            training.global_batch_size,
            self.model.preprocessor,
            training.seed,
            self.config.run.packed,
            options.prompt,
        )
        del self._teacher
        if options.attention_weight:
            # Read again, in the strategy's scope: it runs in every update, so
            # each device needs it.
            self._teacher = read_embedder(options.teacher, "teacher")

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        weights = self._weights
        embeddings, projections = self.compute(
            self.model.embed_packed,
            batch,
            training=True,
            return_projections=True,
        )
        teacher = tf.cast(batch["teacher"], embeddings.dtype)
        losses = {}
        if weights["embedding"]:
            losses["embedding"] = 1 - self._cosines(embeddings, teacher)
        if weights["similarity"]:
            losses["similarity"] = self._similarity_loss(embeddings, teacher)
        if weights["attention"]:
            _, relations = self.compute(
                self._teacher.embed_packed, batch, return_projections=True
            )
            losses["attention"] = sum(
                relation_loss(
                    projection,
                    # Student and teacher may differ in dtype.
                    tf.cast(
                        tf.stop_gradient(relations[name]), embeddings.dtype
                    ),
                    batch["padding_mask"],
                    self._options.relation_heads,
                )
                for name, projection in projections.items()
            ) / len(projections)
        shares = {
            name: mean_share(loss, totals["examples"])
            for name, loss in losses.items()
        }
        return (
            sum(weights[name] * share for name, share in shares.items()),
            {f"{name}_loss": share for name, share in shares.items()},
        )

    def _similarity_loss(self, embeddings, teacher):
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
        targets = tf.matmul(teacher, tf.cast(self._components, teacher.dtype))
        return tf.reduce_sum(
            embeddings * tf.math.l2_normalize(targets, axis=-1), axis=-1
        )

    def flops(self, totals: dict[str, float]) -> float | None:
        if self._weights["attention"]:
            return None  # the teacher computes, too
        return super().flops(totals)

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
                outputs["embeddings"], self._validation.embeddings
            ),
        }


def shared_neighbours(
    embeddings: np.ndarray, teacher: np.ndarray, count: int = _NEIGHBOURS
) -> float:
    """Returns the fraction of nearest texts that student and teacher share.

    Embeddings, `[N, D]` and `[N, E]`, have unit length; `count` texts, or all
    others if there are fewer, are the nearest ones of each.
    """
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
    """Starts tables with the principal components of the teacher's tokens."""

    def tables(backbone):
        return (
            backbone.token_embedding.embeddings,
            backbone.position_embedding.position_embeddings,
            backbone.segment_embedding.embeddings,
        )

    tokens = keras.ops.convert_to_numpy(tables(teacher)[0])
    components = principal_components(tokens, student.hidden_dim)
    for theirs, ours in zip(tables(teacher), tables(student)):
        rows = keras.ops.convert_to_numpy(theirs) @ components
        # A student for longer texts starts with the first positions again.
        ours.assign(np.resize(rows, ours.shape))
