"""Shards of a corpus embedded by the workers of an Apache Beam runner.

Every worker opens the encoder once and writes parts into the folder that all
of them share, by the function that `export.index.embedding` calls.
"""

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise ImportError(
        "`runner` needs Apache Beam: pip install apache-beam"
    ) from error

from export.index import embedding, parts


def run(source, path, shards, folder, model, runner, options):
    """Embeds shards.

    Args:
        source: the `encoder.Source` that each worker opens.
        path: path of the corpus; all workers must see it under this path.
        shards: list of the `corpus.Shard`s to embed.
        folder: `pathlib.Path` of the index folder; likewise.
        model: the `encoder.Model` that this process sees.
        runner: str, a Beam runner, such as "FlinkRunner".
        options: list of str, its options, `NAME=VALUE`.

    Raises:
        ChildProcessError: if the pipeline fails, or has ended without parts
            that this process can see.
    """
    flags = [f"--runner={runner}", *(f"--{option}" for option in options)]
    # A runner raises what it likes.
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
        if not parts.is_written(parts.path_of(folder, shard, model), shard)
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
        # A runner may try again what another worker has done.
        if not parts.is_written(target, shard):
            embedding.embed_shard(
                self._encoder, self._path, shard, self._folder
            )

    def teardown(self):
        self._opened.__exit__(None, None, None)
