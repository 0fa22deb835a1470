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
from keras_fixedhead.losses import similarity_loss
from keras_fixedhead.retrieval import principal_components
from training.corpus.texts import read_texts
from training.distillation.configs import DistillConfig
from training.distillation.teacher import teacher_embeddings
from training.engine.configs import (
    check_length,
    check_positive,
    check_whole_batch,
)
from training.engine.global_batch import ExampleBatches, tokenized
from training.engine.preset import make_encoder, preset_sha256, read_embedder
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

    metrics = ("embedding_loss", "similarity_loss")
    model: FixedHeadTextEmbedder

    def __init__(self, config: DistillConfig):
        self.config = config
        self._options = options = config.distillation
        self._check_options()
        self._sha256 = preset_sha256(options.teacher, "teacher")
        self._teacher = read_embedder(options.teacher, "teacher")
        preprocessor = self._teacher.preprocessor
        preprocessor.prompt(options.prompt)  # raises if there is none
        if preprocessor.sequence_length < options.sequence_length:
            raise ValueError(
                "`sequence_length` must be at most that of the teacher, "
                f"{preprocessor.sequence_length}. "
                f"Received: {options.sequence_length}"
            )
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
        options = self._options
        check_whole_batch(self.config.run.accumulation_steps, "similarities")
        check_length(
            self.config.model.max_sequence_length,
            special_tokens=2,
            sequence_length=options.sequence_length,
        )
        weights = options.embedding_weight, options.similarity_weight
        if min(weights) < 0 or not any(weights):
            raise ValueError(
                "`embedding_weight` and `similarity_weight` must be at least "
                f"0, and not both 0. Received: {weights}"
            )
        check_positive(similarity_temperature=options.similarity_temperature)

    @property
    def settings(self) -> dict:
        settings = dataclasses.asdict(self._options)
        for name in ("teacher", "cache"):
            del settings[name]
        texts = "\n".join(self._texts).encode()
        return {
            # The last three are of earlier versions, whose runs go on.
            "distillation": {
                **settings,
                "attention_weight": 0.0,
                "relation_heads": 1,
                "copy_embeddings": True,
            },
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

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        embeddings = self.compute(self.model.embed_packed, batch, training=True)
        teacher = tf.cast(batch["teacher"], embeddings.dtype)
        examples, options = totals["examples"], self._options
        cosines = mean_share(1 - self._cosines(embeddings, teacher), examples)
        similarities = mean_share(
            self._similarity_losses(embeddings, teacher), examples
        )
        loss = (
            options.embedding_weight * cosines
            + options.similarity_weight * similarities
        )
        return loss, {
            "embedding_loss": cosines,
            "similarity_loss": similarities,
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
        targets = tf.matmul(teacher, tf.cast(self._components, teacher.dtype))
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
