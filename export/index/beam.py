"""Shards of a corpus embedded by the workers of an Apache Beam runner.

Every worker opens the encoder once and writes parts into a shared folder.
"""

import pathlib
from collections.abc import Sequence

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise ImportError(
        "`runner` needs Apache Beam: pip install apache-beam"
    ) from error

from export.index import corpus, parts
from export.model_source import Model, Source


def run(
    source: Source,
    path: pathlib.Path,
    shards: list[corpus.Shard],
    folder: pathlib.Path,
    model: Model,
    runner: str,
    options: Sequence[str],
) -> None:
    """Embeds shards of the corpus `path` into the index folder.

    Every worker opens `source`, which must be this process's `model`, and sees
    both paths. `options` of the runner are `NAME=VALUE`.
    """
    flags = [f"--runner={runner}", *(f"--{option}" for option in options)]
    # Runners raise errors of any kind.
    try:
        with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
            _ = (
                pipeline
                | beam.Create(shards)
                | beam.Reshuffle()
                | beam.ParDo(_Embed(source, path, folder, model))
            )
    except Exception as error:
        raise ChildProcessError(f"{runner}: {error}") from error
    unseen = [
        shard
        for shard in shards
        if not parts.path_of(folder, shard, model).exists()
    ]
    if unseen:
        raise ChildProcessError(
            f"{runner} has ended, and {len(unseen)} of {len(shards)} parts "
            f"are not in {folder}. Every worker must see it under this path."
        )


class _Embed(beam.DoFn):
    def __init__(self, source, path, folder, model):
        self._source, self._model = source, model
        self._path, self._folder = path, folder

    def setup(self):
        self._opened = self._source.open()
        self._encoder = self._opened.__enter__()
        difference = self._model.difference(self._encoder.model)
        if difference:
            raise ValueError(
                f"A worker has another model than its pipeline: {difference}."
            )

    def process(self, shard):
        target = parts.path_of(self._folder, shard, self._model)
        # A runner may repeat what another worker has finished.
        if not target.exists():
            parts.embed_shard(self._encoder, self._path, shard, self._folder)

    def teardown(self):
        self._opened.__exit__(None, None, None)
