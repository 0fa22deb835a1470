"""Settings of `python -m training.convert`."""

import dataclasses
import pathlib
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ConvertConfig:
    """Converts an existing encoder, and perhaps grows it."""

    source: str
    """Folder in Hugging Face's format, or the name of a repository of the
    Hugging Face Hub (owner/name), to download; original BERT checkpoint
    (bert_config.json beside bert_model.ckpt); checkpoint of
    tf-models-official (with bert_config.json or params.yaml); preset of
    KerasHub, by folder or by name; or a preset of this library."""
    output: pathlib.Path
    """Folder to write. It appears once it is complete."""
    task: Literal["text_embedder", "masked_lm", "backbone"] = "text_embedder"
    """What to build."""
    to: Literal["preset", "hugging_face"] = "preset"
    """Format to write; hugging_face is for heads of hidden_dim / num_heads."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """How to pool tokens. Default: the source's."""
    normalize: bool | None = None
    """Whether embeddings have unit length. Default: the source's, or True."""
    lowercase: bool | None = None
    """Whether the tokenizer lowercases and strips accents. Default: the
    source's."""
    special_tokens_in_strings: bool | None = None
    """Whether special tokens in texts, such as [SEP] in "title [SEP]
    abstract", become ids, as in Hugging Face's tokenizers. Do not use this for
    untrusted text. Default: the KerasHub preset's, or False."""
    truncation_side: Literal["right"] | None = None
    """Accepts a source that truncates long texts on the left, and truncates
    them on the right."""
    sequence_length: int | None = None
    """Longest input, in tokens, up to max_sequence_length. Default: the
    source's."""
    query_prompt: str | None = None
    """Text put before each query. Default: the source's."""
    document_prompt: str | None = None
    """Text put before each document. Default: the source's."""
    head_size: int | None = None
    """Larger heads, with the same outputs."""
    num_heads: int | None = None
    """More heads, with the same outputs."""
    max_sequence_length: int | None = None
    """More positions, with the same outputs."""
    drop_layers: tuple[int, ...] = ()
    """Blocks to drop, counted from 0. This changes the outputs; the command
    prints by how much."""
    texts: pathlib.Path | None = None
    """Texts to compare outputs on, one per line. Default: docstrings of
    Keras."""
    num_texts: int = 100
    """Number of texts to compare outputs on, at most."""
    seed: int = 0
    """Seed of new weights."""
