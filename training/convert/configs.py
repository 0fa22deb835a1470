"""What an encoder is converted with: the arguments of the verb."""

import dataclasses
import pathlib
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ConvertConfig:
    """Takes an encoder that others trained, and perhaps lets it grow."""

    source: str
    """Folder in Hugging Face's format, or the name of a repository of the
    Hugging Face Hub (owner/name), to download; original BERT checkpoint
    (bert_config.json beside bert_model.ckpt); checkpoint of
    tf-models-official (with bert_config.json or params.yaml); preset of
    KerasHub, by folder or by name; or a preset of this library."""
    output: pathlib.Path
    """Folder to write. It appears when it is complete."""
    task: Literal["text_embedder", "masked_lm", "backbone"] = "text_embedder"
    """What the preset is of."""
    to: Literal["preset", "hugging_face"] = "preset"
    """Format to write; hugging_face is for heads of hidden_dim / num_heads."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """Tokens to one embedding, where the source does not say."""
    normalize: bool | None = None
    """Whether embeddings have length 1; None is as the source says, or yes."""
    lowercase: bool | None = None
    """Whether the tokenizer lower-cases and strips accents, where the source
    does not say."""
    special_tokens_in_strings: bool | None = None
    """Whether special tokens in texts, such as [SEP] in "title [SEP]
    abstract", become ids, as Hugging Face's tokenizers have it. Texts that
    others write should not. None is as a preset of KerasHub says, or no."""
    truncation_side: Literal["right"] | None = None
    """Accepts a source that truncates long texts on the left. They are
    truncated on the right here."""
    sequence_length: int | None = None
    """Longest input, in tokens; None is as the source says."""
    query_prompt: str | None = None
    """Text put before each query; None is as the source says."""
    document_prompt: str | None = None
    """Text put before each document; None is as the source says."""
    head_size: int | None = None
    """Larger heads, with the same outputs."""
    num_heads: int | None = None
    """More heads, with the same outputs."""
    max_sequence_length: int | None = None
    """More positions, with the same outputs."""
    drop_layers: tuple[int, ...] = ()
    """Blocks to leave out, counted from 0. Changes the outputs; it is said by
    how much."""
    texts: pathlib.Path | None = None
    """Text to compare outputs on, a text a line; None takes docstrings of
    Keras."""
    num_texts: int = 100
    """The most texts to compare on."""
    seed: int = 0
    """Decides the random side of new weights."""
