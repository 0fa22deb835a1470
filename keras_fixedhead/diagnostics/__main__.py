"""Command: what the attention heads of a trained encoder do on some texts.

python -m keras_fixedhead.diagnostics --model runs/minilm --texts texts.txt
"""

import dataclasses
import itertools
import json
import pathlib
import sys

import rich

from keras_fixedhead import command
from keras_fixedhead.argument_checks import positive_int


@dataclasses.dataclass(frozen=True)
class Config:
    """What the attention heads of an encoder do on some texts."""

    model: pathlib.Path
    """Preset folder of an encoder, from training.convert, training.finetune or
    training.pretrain."""
    texts: pathlib.Path
    """File with a text per line; in a .jsonl file, the "text" of each line."""
    count: int = 64
    """Number of texts to read; empty ones do not count."""
    sequence_length: int | None = None
    """Maximum tokens per text; the rest is cut off. Default: the encoder's."""
    output: pathlib.Path | None = None
    """Picture to write, layers by heads; its suffix selects the format."""
    json: bool = False
    """Print the numbers of every head as JSON and nothing else; an infinite
    condition number is null."""


def _report(config):
    from keras_fixedhead import FixedHeadTextEmbedder
    from keras_fixedhead.diagnostics.probe import attention_report
    from keras_fixedhead.diagnostics.report import draw_attention_report
    from keras_fixedhead.files import loading
    from keras_fixedhead.pictures import check_picture

    if config.output is not None:
        check_picture(config.output)
    texts = _read(config.texts, config.count)
    with loading(config.model, "model"):
        embedder = FixedHeadTextEmbedder.from_preset(str(config.model))
    length = config.sequence_length
    if length is not None:
        longest = embedder.backbone.max_sequence_length
        positive_int("sequence_length", length, least=3, most=longest)
        embedder.preprocessor.sequence_length = length
    report = attention_report(embedder, texts, verbose=not config.json)
    if config.json:
        text = json.dumps(dataclasses.asdict(report))
        # JSON has no NaN and no Infinity.
        values = json.loads(text, parse_constant=lambda name: None)
        print(json.dumps(values, indent=2))
    else:
        rich.print(report)
    if config.output is not None:
        draw_attention_report(report, config.output)
        if not config.json:
            print(f"wrote {config.output}")


def _read(path, count):
    from keras_fixedhead import beir

    positive_int("count", count)
    with open(path, encoding="utf-8") as lines:
        if path.suffix == ".jsonl":
            records = beir.read_records(path)
            lines = (beir.text(x, "text", where) for where, x in records)
        texts = filter(None, map(str.strip, lines))
        texts = list(itertools.islice(texts, count))
    if not texts:
        raise ValueError(f"`texts` must hold a text per line. Received: {path}")
    return texts


main = command.entry_point(_report, Config, "keras_fixedhead.diagnostics")

if __name__ == "__main__":
    sys.exit(main())
