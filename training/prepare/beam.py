"""Text to shards of token ids as an Apache Beam pipeline, on any runner.

The documents are those that `training.prepare.local` writes, in other shards:
here nothing has an order, and a document goes to the shard that its hash names.
What a shard holds does not depend on the number of workers here either.
"""

import collections
import json
import math
import pathlib

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise ValueError(
        "`beam` needs Apache Beam: pip install apache-beam"
    ) from error

from training.prepare.configs import TextConfig
from training.prepare.documents import Tally
from training.prepare.local import write_sample, write_vocabulary
from training.prepare.sampling import Sample, shard_number
from training.prepare.shards import is_written, shard_name, write_part
from training.prepare.sources import Sources
from training.prepare.workers import worker_pool

_MET = "met"


def tokenize(
    config: TextConfig, sources: Sources, work: pathlib.Path
) -> collections.Counter:
    """Writes the vocabulary and the shards that the work folder lacks.

    Args:
        config: The arguments of the run; `beam` holds those of the pipeline.
        sources: Where the documents come from. A file is read by one worker.
        work: The work folder, see `training.prepare.shards`, which all workers
            must see under this path.

    Returns:
        What was met while reading, by the names in
        `training.prepare.documents`.

    Raises:
        OSError, ValueError: The vocabulary is wrong or cannot be written.
    """
    options = PipelineOptions([f"--{option}" for option in config.beam])
    if not work.joinpath("data", "vocabulary.txt").exists():
        if config.vocabulary is None:
            sample = _Draw(config.vocabulary_megabytes * 10**6, config.seed)
            with beam.Pipeline(options=options) as pipeline:
                _ = (
                    _read(pipeline, sources).documents
                    | beam.Filter(lambda element: element[0] == "train")
                    | beam.Values()
                    | beam.CombineGlobally(sample)
                    | beam.Map(lambda drawn: write_sample(work, drawn))
                )
        with worker_pool(1) as pool:
            write_vocabulary(config, work, pool)

    met_path = work / "met.json"
    with beam.Pipeline(options=options) as pipeline:
        read = _read(pipeline, sources)
        sizes = (
            read.documents
            | beam.MapTuple(lambda split, document: (split, len(document)))
            | beam.CombinePerKey(sum)
        )
        _ = (
            read.documents
            | beam.Map(
                _name_shard,
                sizes=beam.pvalue.AsDict(sizes),
                shard_bytes=config.shard_megabytes * 10**6,
            )
            | beam.GroupByKey()
            | beam.Map(_write, work=work, lowercase=config.lowercase)
        )
        _ = (
            read[_MET]
            | beam.CombineGlobally(_add_up)
            | beam.Map(lambda met: met_path.write_text(json.dumps(met)))
        )
    return collections.Counter(json.loads(met_path.read_bytes()))


def _read(pipeline, sources):
    """PCollections of (split, document), and of what each source had."""
    return (
        pipeline
        | beam.Create(
            [(part, True) for s in sources.train for part in s.parts()]
            + [(part, False) for s in sources.heldout for part in s.parts()]
        )
        | beam.Reshuffle()
        | beam.ParDo(_Read(sources)).with_outputs(_MET, main="documents")
    )


class _Read(beam.DoFn):
    def __init__(self, sources):
        self._sources = sources

    def process(self, element):
        source, for_training = element
        tally = Tally()
        for document in source.documents(tally):
            if for_training:
                yield self._sources.split(document), document
            else:
                yield "heldout", document
        yield beam.pvalue.TaggedOutput(_MET, dict(tally.counts))


class _Draw(beam.CombineFn):
    """A `Sample` of all documents."""

    def __init__(self, max_bytes, seed):
        self._new = max_bytes, seed

    def create_accumulator(self):
        return Sample(*self._new)

    def add_input(self, sample, document):
        sample.add(document)
        return sample

    def merge_accumulators(self, samples):
        merged = self.create_accumulator()
        for sample in samples:
            for document in sample.documents():
                merged.add(document)
        return merged

    def extract_output(self, sample):
        return sample.documents()


def _add_up(counters):
    total = collections.Counter()
    for counts in counters:
        total.update(counts)
    return dict(total)


def _name_shard(element, sizes, shard_bytes):
    split, document = element
    num_shards = math.ceil(sizes[split] / shard_bytes)
    return shard_name(split, shard_number(document, num_shards)), document


def _write(element, work, lowercase):
    name, documents = element
    if not is_written(work, name):
        write_part(work, name, sorted(documents), lowercase)
