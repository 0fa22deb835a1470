"""Text to shards of token ids as an Apache Beam pipeline, on any runner.

The documents are those that `training.prepare.text` writes, in other shards:
documents have no order here, and the hash of a document chooses its shard. The
number of workers does not change what a shard holds.
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
from training.prepare.shards import is_written, shard_name, write_part
from training.prepare.sources import Sample, Sources, shard_number
from training.prepare.text import sample_path, write_vocabulary

_MET = "met"


def tokenize(
    config: TextConfig, sources: Sources, work: pathlib.Path
) -> collections.Counter:
    """Writes the vocabulary and the shards that the work folder lacks.

    All workers must see the work folder under this path. Returns the counts of
    all `Tally`s.
    """
    options = PipelineOptions([f"--{option}" for option in config.beam or ()])
    if not work.joinpath("data", "vocabulary.txt").exists():
        if config.vocabulary is None:
            path = sample_path(work)
            sample = _Draw(config.vocabulary_megabytes * 10**6, config.seed)
            with beam.Pipeline(options=options) as pipeline:
                _ = (
                    _read(pipeline, sources).documents
                    | beam.Filter(lambda element: element[0] == "train")
                    | beam.Values()
                    | beam.CombineGlobally(sample)
                    | beam.Map(lambda drawn: path.write_bytes(drawn))
                )
        write_vocabulary(config, work)

    met_path = work / "met.json"
    with beam.Pipeline(options=options) as pipeline:
        read = _read(pipeline, sources)
        sizes = (
            read.documents
            | beam.MapTuple(lambda split, document: (split, len(document)))
            | "Sum sizes" >> beam.CombinePerKey(sum)
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
            | "Sum counts" >> beam.CombinePerKey(sum)
            | beam.combiners.ToDict()
            | beam.Map(lambda met: met_path.write_text(json.dumps(met)))
        )
    return collections.Counter(json.loads(met_path.read_bytes()))


def _read(pipeline, sources):
    """PCollections of (split, document), and of (name, count) of `Tally`."""
    parts = [(part, True) for s in sources.train for part in s.parts()]
    parts += [(part, False) for s in sources.heldout for part in s.parts()]
    return (
        pipeline
        | beam.Create(parts)
        | beam.Reshuffle()
        | beam.FlatMap(_read_part, sources=sources).with_outputs(
            _MET, main="documents"
        )
    )


def _read_part(element, sources):
    part, for_training = element
    tally = Tally()
    for document in part.documents(tally):
        yield sources.split(document) if for_training else "heldout", document
    for name_and_count in tally.counts.items():
        yield beam.pvalue.TaggedOutput(_MET, name_and_count)


class _Draw(beam.CombineFn):
    """The text of a `Sample` of all documents."""

    def __init__(self, max_bytes, seed):
        self._arguments = max_bytes, seed

    def create_accumulator(self):
        return Sample(*self._arguments)

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
        return b"\n".join(sample.documents())


def _name_shard(element, sizes, shard_bytes):
    split, document = element
    num_shards = math.ceil(sizes[split] / shard_bytes)
    return shard_name(split, shard_number(document, num_shards)), document


def _write(element, work, lowercase):
    name, documents = element
    if not is_written(work, name):
        write_part(work, name, sorted(documents), lowercase)
