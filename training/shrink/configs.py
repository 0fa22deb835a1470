"""Settings of `python -m training.shrink`."""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class ShrinkConfig:
    """Shrinks an embedder, and measures what it keeps."""

    source: pathlib.Path
    """Preset of the encoder, of any task, such as `training.convert` writes.
    The command shrinks it as an embedder."""
    calibration: tuple[pathlib.Path, ...]
    """Files of texts, one a line, or .jsonl with `text`, of the domains that
    matter. Each gives as many tokens."""
    output: pathlib.Path
    """Folder to write. It appears once it is complete."""
    hidden_dim: int | None = None
    """Embedding size to keep. Default: the source's."""
    num_layers: int | None = None
    """Layers to keep; the others change the outputs least. Default: all."""
    calibration_tokens: int = 40_000
    """Tokens to fit to, of texts drawn from all files."""
    sequence_length: int | None = None
    """Longest text, in tokens; the rest is cut off. Default: the source's."""
    heldout_texts: int = 1_000
    """Other texts, on which the command compares nearest neighbours."""
    ridge: float = 1e-3
    """Pulls each fit towards the sliced weights."""
    seed: int = 0
    """Seed of the draw of texts."""
