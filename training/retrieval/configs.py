"""Training and evaluation for retrieval: fields and named runs."""

import dataclasses
import pathlib
from typing import ClassVar, Literal

from training.engine.configs import FinetuneConfig, changed, named_run


@dataclasses.dataclass(frozen=True)
class RetrievalConfig:
    """The pairs of a dual encoder, and its contrastive loss."""

    query_length: int
    """Longest query, in tokens; the rest is cut off."""
    document_length: int
    """Longest document, in tokens; the rest is cut off."""
    query_prompt: str | None = None
    """Text put before each query. None: as in init, else none."""
    document_prompt: str | None = None
    """Text put before each document. None: as in init, else none."""
    lowercase: bool | None = None
    """Whether the tokenizer lowercases and strips accents. None: as init does,
    else yes."""
    pooling_mode: str | None = None
    """Pooling: mean, cls or max. None: as in init, else mean."""
    temperature: float = 0.05
    """Divides cosine similarities; the initial value if it is learned."""
    learn_temperature: bool = False
    """Whether the temperature trains with the model."""
    hard_negatives: int = 0
    """Documents of the data that do not answer the query, drawn anew in each
    epoch, beside the other documents of the batch."""
    matryoshka_dims: tuple[int, ...] = ()
    """Embedding sizes to train beside the full one, each its first dimensions
    (Kusupati et al. 2022); export.saved_model --embedding_dim serves one."""
    crop_document: float = 0.0
    """Probability that a document shrinks to some consecutive sentences."""
    inverse_cloze: float = 0.0
    """Probability that a sentence cut out of the document is the query."""
    validation_pairs: int = 512
    """Training pairs set aside to evaluate on during training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrieveConfig(FinetuneConfig):
    """Fine-tuning of an encoder for retrieval."""

    task: ClassVar[str] = "training.retrieval.task:RetrievalTask"
    retrieval: RetrievalConfig


def demo_retrieval() -> RetrieveConfig:
    """Search in documentation: minutes on two CPU cores, from scratch."""
    return named_run(
        RetrieveConfig,
        config="demo_retrieval",
        num_layers=1,
        num_heads=4,
        hidden_dim=256,
        intermediate_dim=512,
        dropout=0.0,  # changed pairs regularize at no cost
        max_sequence_length=96,  # and so head_size=96
        steps=300,
        global_batch_size=256,
        learning_rate=3e-3,
        warmup_steps=50,
        query_length=32,
        document_length=96,
        crop_document=0.25,
        inverse_cloze=0.25,
        evaluation_interval=100,
        checkpoint_interval=100,
    )


def retrieval() -> RetrieveConfig:
    """Search with a trained encoder (--init), its embedding in three sizes."""
    return named_run(
        RetrieveConfig,
        config="retrieval",
        dropout=0.0,
        steps=1_000,
        global_batch_size=64,
        learning_rate=5e-5,
        warmup_steps=100,
        query_length=48,
        document_length=256,
        matryoshka_dims=(192, 96),
    )


def compact_retrieval() -> RetrieveConfig:
    """One layer, d = 256, 4 heads of 256, from scratch: an hour on two CPU
    cores."""
    return changed(
        demo_retrieval(),
        config="compact_retrieval",
        intermediate_dim=1024,
        max_sequence_length=256,  # and so head_size=256
        steps=1_000,
        warmup_steps=100,
        query_length=48,
        document_length=256,
        matryoshka_dims=(128, 64),
        evaluation_interval=200,
        checkpoint_interval=200,
    )


NAMED_RUNS = {
    "demo_retrieval": demo_retrieval,
    "retrieval": retrieval,
    "compact_retrieval": compact_retrieval,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionsConfig:
    """Collections to search, and the model that embeds them."""

    collection: tuple[pathlib.Path, ...]
    """BEIR folders (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv); metrics
    are averaged over them."""
    model: pathlib.Path
    """Preset of an embedder. Its prompts `query` and `document`, if it has
    them, are put before the texts."""
    split: str = "test"
    """Judgements to use, qrels/SPLIT.tsv."""
    sequence_length: int | None = None
    """Longest text, in tokens. Default: the model's."""
    batch_size: int = 64
    """Texts to embed at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(CollectionsConfig):
    """What to measure, and on what."""

    recall: tuple[int, ...] = (10, 100)
    """The k of recall@k."""
    precision: Literal["float32", "int8", "binary", "binary_int8"] = "float32"
    """Size of each dimension in the index: 4 bytes, 1 byte or 1 bit; or a bit
    to find documents, and a byte to score them again."""
    dimension: int | None = None
    """Dimensions of an embedding to keep in the index. Default: all."""
    reduction: Literal["truncate", "pca"] = "truncate"
    """Which to keep: the first ones, for models trained for that, or the
    principal components of the documents."""
    approximate: bool = False
    """Search only part of the documents, by a graph (bits: by cells)."""
    output: pathlib.Path | None = None
    """JSON file for the metrics."""
    query_model: pathlib.Path | None = None
    """Preset that embeds the queries, such as the PRESET/query_encoder that
    `training.distill --init` writes. Default: the model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(CollectionsConfig):
    """What to measure, on what, and where to write it."""

    output: pathlib.Path
    """Folder for report.json and report.png."""
    dimensions: tuple[int, ...] | None = None
    """Sizes to reduce embeddings to. Default: a half and a quarter."""
    rounds: int = 5
    """Rounds of timing; each asks every index in turn."""
