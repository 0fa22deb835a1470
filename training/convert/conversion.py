"""From a source to a preset: read, compare, let it grow, write."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterator

import keras
from rich.console import Console

from keras_fixedhead import FixedHeadBackbone, growth
from keras_fixedhead.convert import BertSource, to_hugging_face
from keras_fixedhead.convert.bert_source import SPECIAL_TOKEN_TEXTS
from training.convert.check import (
    compare_to_model,
    compare_to_source,
    inputs_of,
    tokenize_in_graph,
)
from training.convert.configs import ConvertConfig
from training.convert.sources import (
    is_own_preset,
    read_own_preset,
    read_source,
)
from training.corpus.texts import read_texts
from training.engine.preset import write_preset
from training.prepare.docstrings import read_docstrings

# Arguments that say what a source may leave open.
_OF_OTHERS = (
    "pooling",
    "normalize",
    "lowercase",
    "special_tokens_in_strings",
    "truncation_side",
)


def convert(config: ConvertConfig) -> keras.Model:
    """Writes the model that `config` describes, after it was compared.

    Returns:
        The model.

    Raises:
        ValueError: The source is unknown, unsupported or damaged, or does
            not say what is needed; an argument does not fit; or outputs are
            not those of the source.
        OSError: A file cannot be read, or the folder exists or cannot be
            written.
    """
    if config.output.exists():
        raise FileExistsError(
            f"{config.output} exists. Choose another --output, or remove it"
        )
    console = Console(stderr=True)
    say = functools.partial(
        console.print, highlight=False, markup=False, soft_wrap=True
    )
    say("reading the texts to compare on")
    texts = _read_texts(config)
    figures = {}
    # All that can be refused is, before anything is compared.
    say(f"reading {config.source}")
    source, model, tokenizer = _read_model(config)
    models = [model]
    changes = list(_changes(config))
    for name, _, change in changes:
        say(f"changing {name} to {getattr(config, name)}")
        models.append(change(models[-1]))
    _set_length_and_prompts(models[-1], config)
    say(f"comparing token ids of {len(texts)} texts")
    inputs = inputs_of(texts, model, tokenizer)
    if source is not None:
        for line in _remarks(source, model, tokenizer, texts):
            say(line)
        agreement = compare_to_source(source, model, inputs)
        agreement.require("The conversion is not exact")
        say(f"converted: {agreement}")
        figures["conversion"] = dataclasses.asdict(agreement)
    for (name, exact, _), before, model in zip(changes, models, models[1:]):
        what = f"{name} {getattr(config, name)}"
        if exact:
            agreement = compare_to_model(before, model, inputs)
            agreement.require(f"{what} does not keep the outputs")
            say(f"{what}: {agreement}")
            figures[name] = dataclasses.asdict(agreement)
        else:
            changed = growth.output_change(before, model, inputs)
            say(
                f"{what}: outputs have a mean cosine similarity of "
                f"{changed.mean_cosine:.4f} to those before, and are "
                f"{changed.largest_difference:.2g} apart at most"
            )
            figures[name] = dataclasses.asdict(changed)
    say(f"writing {config.output}")
    config.output.parent.mkdir(parents=True, exist_ok=True)
    if config.to == "hugging_face":
        to_hugging_face(model, config.output)
    else:
        write_preset(
            config.output,
            model,
            lambda folder: _save(model, tokenizer, config, figures, folder),
        )
    say(f"wrote {config.output}: {model.count_params():,} parameters")
    return model


def _read_texts(config):
    if config.num_texts < 1:
        raise ValueError(
            f"`num_texts` must be positive. Received: {config.num_texts}"
        )
    if config.texts is not None:
        return read_texts(config.texts, config.num_texts)
    pairs, _ = read_docstrings([os.path.dirname(keras.__file__)])
    # From all of it, not the beginning of the alphabet.
    return [
        pair.document for pair in pairs[:: -(-len(pairs) // config.num_texts)]
    ]


def _read_model(config):
    """The source (`None` for a preset of ours), the model, the tokenizer."""
    if not is_own_preset(config.source):
        overrides = {
            "pooling_mode": config.pooling,
            "normalize": config.normalize,
            "lowercase": config.lowercase,
            "special_tokens_in_strings": config.special_tokens_in_strings,
            "truncation_side": config.truncation_side,
        }
        source = read_source(
            config.source,
            **{k: v for k, v in overrides.items() if v is not None},
        )
        tokenizer = None if source.vocabulary is None else source.tokenizer()
        return source, source.build(config.task), tokenizer
    given = [name for name in _OF_OTHERS if getattr(config, name) is not None]
    if given:
        raise ValueError(
            f"{config.source} is a preset of this library and says all of "
            f"itself. Received: {', '.join(given)}"
        )
    return None, *read_own_preset(config.source, config.task)


def _remarks(source: BertSource, model, tokenizer, texts) -> Iterator[str]:
    """What whoever converts should know."""
    unused = source.left_out(model)
    if unused:
        yield f"left out, unused by this task: {', '.join(unused)}"
    if source.default_prompt:
        yield (
            f"the source puts its prompt {source.default_prompt!r} before "
            "texts unless told otherwise; here a prompt is always named"
        )
    if tokenizer is None:
        yield "the source has no vocabulary: compared on random token ids"
    elif source.tokenize is not None:
        for where, tokenize in (
            ("", tokenizer),
            (" in TensorFlow graphs", tokenize_in_graph(tokenizer)),
        ):
            differing = source.differing_texts(tokenize, texts)
            yield (
                f"token ids{where}: {len(differing)} of {len(texts)} texts "
                "differ from the source's tokenizer"
                + (f", such as {differing[0][:60]!r}" if differing else "")
            )
        differing = source.differing_texts(tokenizer, SPECIAL_TOKEN_TEXTS)
        if differing:
            ids = tokenizer.special_tokens_in_strings
            yield (
                f"special tokens in texts are {'ids' if ids else 'text'} "
                f"here: {len(differing)} of {len(SPECIAL_TOKEN_TEXTS)} texts "
                "with one differ from the source's tokenizer, such as "
                f"{differing[0]!r}"
                + ("" if ids else ". See --special_tokens_in_strings")
            )


def _changes(config) -> Iterator[tuple[str, bool, Callable]]:
    """What is to be changed: its name, whether outputs stay, a function."""
    if config.drop_layers:
        yield (
            "drop_layers",
            False,
            lambda model: growth.drop_layers(model, config.drop_layers),
        )
    if config.max_sequence_length is not None:
        yield (
            "max_sequence_length",
            True,
            lambda model: growth.grow_positions(
                model, config.max_sequence_length
            ),
        )
    for name, grow in (
        ("num_heads", growth.grow_heads),
        ("head_size", growth.grow_head_size),
    ):
        size = getattr(config, name)
        if size is not None:
            yield (
                name,
                True,
                functools.partial(
                    lambda model, grow, size: grow(model, size, config.seed),
                    grow=grow,
                    size=size,
                ),
            )


def _set_length_and_prompts(model, config):
    prompts = {
        name: prompt
        for name, prompt in (
            ("query", config.query_prompt),
            ("document", config.document_prompt),
        )
        if prompt is not None
    }
    if isinstance(model, FixedHeadBackbone):
        if prompts or config.sequence_length is not None:
            raise ValueError(
                "A backbone has neither prompts nor a length. Pass --task "
                "text_embedder, or neither"
            )
        return
    longest = model.backbone.max_sequence_length
    length = config.sequence_length
    if length is not None:
        if not 2 < length <= longest:
            raise ValueError(
                "`sequence_length` must be over 2 (the special tokens) and at "
                f"most {longest}, for which the model has positions (more "
                f"with --max_sequence_length). Received: {length}"
            )
        model.preprocessor.sequence_length = length
    if prompts:
        if config.task != "text_embedder":
            raise ValueError("Prompts are of a text_embedder")
        model.preprocessor.prompts |= prompts


def _save(model, tokenizer, config, figures, folder: pathlib.Path):
    model.save_to_preset(str(folder))
    if isinstance(model, FixedHeadBackbone) and tokenizer is not None:
        tokenizer.save_to_preset(str(folder))
    arguments = dataclasses.asdict(config)
    for name in ("output", "to"):
        del arguments[name]
    settings = {"conversion": arguments}
    text = json.dumps(
        {"settings": settings, "figures": figures}, indent=2, default=os.fspath
    )
    (folder / "run.json").write_text(f"{text}\n", encoding="utf-8")
