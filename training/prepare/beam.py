"""Text to shards of token ids as an Apache Beam pipeline, on any runner.

The documents are those that `training.prepare.text` writes, in other shards:
documents have no order here, and the hash of a document chooses its shard. The
number of workers does not change what a shard holds.
"""

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
from training.prepare.documents import Counts
from training.prepare.shards import part_path, shard_name, write_part
from training.prepare.sources import Sources, document_hash

_MET = "met"


def tokenize(
    config: TextConfig, sources: Sources, work: pathlib.Path
) -> Counts:
    """Writes missing shards, and returns the counts of what was read."""
    options = PipelineOptions([f"--{option}" for option in config.beam or ()])
    parts = [(part, True) for s in sources.train for part in s.parts()]
    parts += [(part, False) for s in sources.heldout for part in s.parts()]
    met_path = work / "met.json"
    with beam.Pipeline(options=options) as pipeline:
        read = (
            pipeline
            | beam.Create(parts)
            | beam.Reshuffle()
            | beam.FlatMap(_read_part, sources=sources).with_outputs(
                _MET, main="documents"
            )
        )
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
    return Counts(json.loads(met_path.read_bytes()))


def _read_part(element, sources):
    part, for_training = element
    counts = Counts()
    for document in part.documents(counts):
        yield sources.split(document) if for_training else "heldout", document
    for name_and_count in counts.items():
        yield beam.pvalue.TaggedOutput(_MET, name_and_count)


def _name_shard(element, sizes, shard_bytes):
    split, document = element
    num_shards = math.ceil(sizes[split] / shard_bytes)
    number = document_hash(document, b"shard", 0) % num_shards
    return shard_name(split, number), document


def _write(element, work, lowercase):
    name, documents = element
    if not part_path(work, name).exists():
        write_part(work, name, sorted(documents), lowercase)
