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

from keras_fixedhead.files import replaced
from training.corpus.folder import read_manifest
from training.engine.lock import held

_STAMPS = "sources.json"


def arguments_of(config) -> dict:
    """What decides the content of the folder, of a verb's arguments.

    Args:
        config: A dataclass.

    Returns:
        The arguments, as JSON values.
    """
    arguments = dataclasses.asdict(config)
    for name in ("output", "overwrite", "workers"):
        arguments.pop(name, None)
    return as_json(arguments)


def as_json(values: dict) -> dict:
    """The same values as JSON has them: lists for tuples, names for paths."""
    return json.loads(json.dumps(values, default=os.fspath))


def made_before(
    output: pathlib.Path,
    kind: str,
    arguments: dict,
    stamps: list | None,
    overwrite: bool,
) -> dict | None:
    """The manifest of a folder that need not be made again.

    Args:
        output: The data folder to make.
        kind: What it is to hold.
        arguments: What it is to be made with, as JSON values.
        stamps: Sizes and times of the files it is to be made of, as JSON
            values; None where they are gone and it cannot be made again.
        overwrite: Whether one that is there is to be made again.

    Returns:
        None where the folder is to be made.

    Raises:
        ValueError: What is there is no data folder, or was made with other
            arguments or of other files and is not to be overwritten.
    """
    if not output.exists():
        return None
    try:
        manifest, _ = read_manifest(output, kind)
    except (OSError, ValueError):
        raise ValueError(
            "`output` must be a new folder, or one that this command wrote. "
            f"Received: {str(output)!r}"
        ) from None
    if overwrite:
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


def finish(
    folder: pathlib.Path,
    output: pathlib.Path,
    manifest: dict,
    stamps: list | None,
) -> dict:
    """Writes the manifest and puts the folder in the place of `output`.

    Args:
        folder: Holds everything else, `vocabulary.txt` too. It is on the disk
            of `output`, and gone afterwards.
        output: The data folder.
        manifest: What to record beside the vocabulary's hash and versions.
        stamps: Sizes and times of the files it is made of, from before they
            were read. They are no part of the manifest, of which runs keep
            the hash.

    Returns:
        The whole manifest.
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
    for name, values in {"manifest.json": manifest, _STAMPS: stamps}.items():
        with replaced(folder / name) as path:
            path.write_text(
                json.dumps(values, indent=2) + "\n", encoding="utf-8"
            )
    with tempfile.TemporaryDirectory(
        prefix=f".{output.name}.", dir=output.parent
    ) as old:
        if output.exists():
            os.replace(output, pathlib.Path(old, "old"))
        os.replace(folder, output)
    print(f"wrote {output}")
    return manifest


@contextlib.contextmanager
def work_folder(
    output: pathlib.Path, plan: dict, overwrite: bool
) -> Iterator[pathlib.Path]:
    """Yields the folder beside `output` in which an unfinished run is kept.

    Args:
        output: The data folder to make.
        plan: What decides its content, as JSON values. A run that is there
            with the same plan is continued.
        overwrite: Whether one that is there with another is thrown away.

    Yields:
        A folder with the folders `data` and, for accounts of what is
        finished, `parts`. It is removed at the end, also after a `ValueError`,
        which the same plan would raise again. After anything else it is kept
        if there is something in `parts`.

    Raises:
        ValueError: An unfinished run has another plan, or is running.
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
                    "it with what it was given, or pass --overwrite to begin "
                    "anew"
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
    """Names of the arguments that differ, or else of what does."""
    was, now = recorded["arguments"], plan["arguments"]
    return [name for name in now if was.get(name) != now[name]] or [
        name for name in plan if recorded.get(name) != plan[name]
    ]
