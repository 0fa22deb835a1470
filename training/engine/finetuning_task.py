"""The base class of tasks that fine-tune an encoder.

A task is a folder: `configs.py` with its options (`HeadConfig`), its run
(`FinetuneConfig`) and `NAMED_RUNS`, which `training/finetune.py` lists; and
`task.py` with its `ExampleBatches` (in `batches.py` if they are long), a
`FinetuningTask`, which the run names, and `predict`, which
`training/predict.py` calls.
"""

import abc
import dataclasses
import functools
import pathlib

from keras_fixedhead import FixedHeadBackbone, FixedHeadTokenizer
from training.engine.checks import check_length
from training.engine.configs import FinetuneConfig
from training.engine.encoder import (
    check_vocabulary,
    copy_encoder,
    make_encoder,
    read_start,
    read_tokenizer,
)
from training.engine.global_batch import ExampleBatches
from training.engine.preset import preset_sha256
from training.engine.sequences import SequenceTask
from training.engine.task_configs import HeadConfig


class FinetuningTask(SequenceTask):
    """Trains the encoder of a preset (`init`), or a new one, under a head.

    A subclass sets the attributes below. Its `__init__` makes `_preprocessor`
    and reads `_training` and `_validation`, the examples of `batches`.
    """

    part: str
    """Field of the configuration that holds the task's options."""
    sources: tuple[str, ...] = ()
    """Options to leave out of `settings`: `data_sha256` covers the content of
    these files, which may move."""
    batches: type[ExampleBatches]

    def __init__(self, config: FinetuneConfig):
        self.config = config
        self._options = getattr(config, self.part)
        if isinstance(self._options, HeadConfig):
            rate = self._options.head_dropout
            if not 0.0 <= rate < 1.0:
                raise ValueError(
                    "`head_dropout` must be from 0 to below 1. "
                    f"Received: {rate}"
                )
        self._start, self._model = read_start(config.model)

    @functools.cached_property
    def _batches(self) -> ExampleBatches:
        training = self.config.training
        return self.batches(
            training.global_batch_size,
            self._preprocessor,
            training.seed,
            packed=self.config.run.packed,
        )

    @property
    @abc.abstractmethod
    def data_sha256(self) -> dict[str, str]:
        """A checksum for each part of the data."""

    @property
    def settings(self):
        model = dataclasses.asdict(self.config.model)
        init = model.pop("init")
        options = dataclasses.asdict(self._options)
        for name in self.sources:
            del options[name]
        return {
            "model": model,
            "init_sha256": init and preset_sha256(init, "init"),
            self.part: options,
            "data_sha256": self.data_sha256,
        }

    def _check_lengths(self, special_tokens: int, **lengths: int):
        longest = self._model.max_sequence_length
        check_length(longest, special_tokens, **lengths)

    def _read_tokenizer(self) -> FixedHeadTokenizer:
        """Reads the tokenizer of `init`, or the options' `vocabulary`."""
        options = self._options
        check_vocabulary(options.vocabulary, self._model.init)
        return read_tokenizer(
            self._start, options.vocabulary, options.lowercase
        )

    def _make_encoder(self, pooler: bool = False) -> FixedHeadBackbone:
        """Copies the encoder of `init`, its pooler on request, or makes one."""
        if self._start is None:
            tokenizer = self._preprocessor.tokenizer
            return make_encoder(self._model, tokenizer.vocabulary_size())
        return copy_encoder(self._start.backbone, self._model, pooler=pooler)

    def training_dataset(self, context, first_step):
        return self._batches.training(self._training, context, first_step)

    def evaluation_dataset(self, context):
        return self._batches.evaluation(self._validation, context)

    def save(self, folder: pathlib.Path):
        self.model.save_to_preset(str(folder))
