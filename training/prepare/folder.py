"""A data folder that appears when it is complete, and an unfinished one."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator

from keras_fixedhead.files import replaced, write_json
from training.corpus.folder import read_manifest
from training.engine.cli import held

_STAMPS = "sources.json"


def arguments_of(config) -> dict:
    """The fields of a dataclass that decide the folder's content, as JSON."""
    arguments = dataclasses.asdict(config)
    for name in ("output", "overwrite", "workers"):
        arguments.pop(name, None)
    return as_json(arguments)


def as_json(values: dict) -> dict:
    """Converts tuples to lists and paths to strings, as in a JSON file."""
    return json.loads(json.dumps(values, default=os.fspath))


def made_before(
    config, kind: str, arguments: dict, stamps: list | None
) -> dict | None:
    """Returns the manifest if the `output` of a verb need not be made.

    `stamps` are those of the sources; `None` if a source is gone, so that the
    folder cannot be made again.
    """
    output = config.output
    if not output.exists():
        return None
    try:
        manifest, _ = read_manifest(output, kind)
    except (OSError, ValueError):
        raise ValueError(
            "`output` must be a new folder, or one that this command wrote. "
            f"Received: {str(output)!r}"
        ) from None
    if config.overwrite:
        return None
    if manifest["arguments"] != arguments:
        raise ValueError(
            f"`output` {str(output)!r} was made with other arguments: "
            f"{manifest['arguments']}. Choose another folder or pass "
            "--overwrite"
        )
    path = output / _STAMPS  # older folders have none
    recorded = json.loads(path.read_bytes()) if path.exists() else None
    if None not in (stamps, recorded) and stamps != recorded:
        raise ValueError(
            f"`output` {str(output)!r} was made of files that have changed "
            "since. Choose another folder or pass --overwrite"
        )
    print(f"{output}: made before, with the same arguments")
    return manifest


@contextlib.contextmanager
def new_folder(output: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a temporary folder beside `output`, to write and `finish`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_folder(output) as temporary:
        folder = pathlib.Path(temporary, "new")
        folder.mkdir()
        yield folder


def finish(
    folder: pathlib.Path,
    output: pathlib.Path,
    manifest: dict,
    stamps: list | None,
) -> dict:
    """Adds the manifest and moves the folder, on the same disk, to `output`.

    `folder` has everything else. The manifest gets the vocabulary's hash and
    versions. `stamps`, from before the sources were read, have a file of their
    own because runs record the hash of the manifest.
    """
    vocabulary = (folder / "vocabulary.txt").read_bytes()
    manifest = manifest | {
        "vocabulary_sha256": hashlib.sha256(vocabulary).hexdigest(),
        "versions": {
            "python": platform.python_version(),
            "tensorflow-text": importlib.metadata.version("tensorflow-text"),
        },
    }
    for leftover in folder.glob(".*.partial"):  # of a process that was killed
        leftover.unlink()
    write_json(folder / "manifest.json", manifest)
    write_json(folder / _STAMPS, stamps)
    with _temporary_folder(output) as old:
        if output.exists():
            os.replace(output, pathlib.Path(old, "old"))
        os.replace(folder, output)
    print(f"wrote {output}")
    return manifest


def _temporary_folder(output):
    return tempfile.TemporaryDirectory(
        prefix=f".{output.name}.", dir=output.parent
    )


@contextlib.contextmanager
def work_folder(
    output: pathlib.Path, plan: dict, overwrite: bool
) -> Iterator[pathlib.Path]:
    """Yields the folder beside `output` that keeps an unfinished run.

    `plan` is what decides the content, as JSON values. A run with the same
    plan is continued; one with another plan is an error unless `overwrite`.

    The folder has the folders `data` and, for what is finished, `parts`. It is
    removed at the end, also after a `ValueError`, which the same plan would
    raise again. After another error it stays if `parts` is not empty.
    """
    work = output.with_name(f".{output.name}.partial")
    data, parts, path = work / "data", work / "parts", work / "plan.json"
    work.mkdir(parents=True, exist_ok=True)
    busy = f"`output` {str(output)!r} is being made by another process"
    with held(work, busy):
        recorded = json.loads(path.read_bytes()) if path.exists() else None
        if recorded != plan:
            if not overwrite and _any_in(parts):
                raise ValueError(
                    f"{work} holds an unfinished run, which differs in "
                    f"{' and '.join(_differences(recorded, plan))}. Continue "
                    "it with the same arguments and sources, or pass "
                    "--overwrite to start again"
                )
            for folder in (data, parts):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            with replaced(path) as partial:
                partial.write_text(json.dumps(plan), encoding="utf-8")
        try:
            yield work
        except BaseException as error:
            if isinstance(error, ValueError) or not _any_in(parts):
                shutil.rmtree(work)
            else:
                print(
                    f"{work} keeps what is finished; the same command "
                    "continues from there",
                    file=sys.stderr,
                )
            raise
        shutil.rmtree(work)


def _any_in(folder):
    return folder.exists() and any(folder.iterdir())


def _differences(recorded, plan):
    """Names the arguments that differ, or else the parts of the plan."""
    was, now = recorded["arguments"], plan["arguments"]
    return [name for name in now if was.get(name) != now[name]] or [
        name for name in plan if recorded.get(name) != plan[name]
    ]
