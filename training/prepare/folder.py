"""The data folder of a command: made in a folder beside it, then moved."""

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
from collections.abc import Iterator, Sequence

from keras_fixedhead.files import write_json
from training.corpus.folder import read_manifest
from training.engine.cli import held
from training.prepare.configs import FolderConfig
from training.prepare.sources import stamps

_STAMPS = "sources.json"


class Output:
    """The data folder that a command is to write from the files `names`.

    The flags of `config`, with `changes`, decide its content.
    """

    def __init__(
        self, config: FolderConfig, names: Sequence[str], **changes: str
    ):
        self._config, self._path = config, config.output
        arguments = dataclasses.asdict(config)
        for name in ("output", "overwrite", "workers"):
            arguments.pop(name, None)
        # Tuples become lists, and paths strings, as in the manifest.
        text = json.dumps(arguments | changes, default=os.fspath)
        self._arguments: dict = json.loads(text)
        self._plan = {**self._arguments, "files": stamps(names)}

    def _differences(self, recorded: dict) -> str:
        plan = self._plan
        names = [name for name in plan if recorded.get(name) != plan[name]]
        return " and ".join(names)

    def made_before(self) -> dict | None:
        """Returns the manifest of the folder if it was made of the same."""
        path = self._path
        if not path.exists():
            return None
        try:
            manifest, _ = read_manifest(path, self._config.kind)
        except (OSError, ValueError):
            raise ValueError(
                "`output` must be a new folder, or one that this command "
                f"wrote. Received: {str(path)!r}"
            ) from None
        if self._config.overwrite:
            return None
        file = path / _STAMPS  # older folders have none
        files = json.loads(file.read_bytes()) if file.exists() else None
        if files is None or self._plan["files"] is None:  # a source is gone
            files = self._plan["files"]
        recorded = {**manifest["arguments"], "files": files}
        if differences := self._differences(recorded):
            raise ValueError(
                f"`output` {str(path)!r} was made with other {differences}. "
                "Choose another folder or pass --overwrite"
            )
        print(f"{path}: made before, with the same arguments")
        return manifest

    @contextlib.contextmanager
    def work_folder(self, sources: Sequence = ()) -> Iterator[pathlib.Path]:
        """Yields a folder on the same disk, to fill its `data` and `finish`.

        An interruption keeps it if its folder `parts` has files, and the same
        command continues; a `ValueError`, which would come again, does not.
        """
        self._plan["sources"] = [str(source) for source in sources]
        work = self._path.with_name(f".{self._path.name}.partial")
        parts, path = work / "parts", work / "plan.json"
        work.mkdir(parents=True, exist_ok=True)
        busy = f"`output` {str(self._path)!r} is being made by another process"
        with held(work, busy):
            recorded = json.loads(path.read_bytes()) if path.exists() else {}
            differences = self._differences(recorded)
            started = any(parts.glob("*"))
            if differences and started and not self._config.overwrite:
                raise ValueError(
                    f"{work} holds an unfinished run, which differs in "
                    f"{differences}. Continue it with the same arguments and "
                    "sources, or pass --overwrite to start again"
                )
            if differences or not started:
                for folder in (work / "data", parts):
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir()
                write_json(path, self._plan)
            keep = False
            try:
                yield work
            except BaseException as error:
                finished = any(parts.glob("*"))
                keep = finished and not isinstance(error, ValueError)
                if keep:
                    print(
                        f"{work}: the same command continues from there",
                        file=sys.stderr,
                    )
                raise
            finally:
                if not keep:
                    shutil.rmtree(work)

    def finish(self, work: pathlib.Path, manifest: dict) -> dict:
        """Moves the data in `work` here, with the manifest, which it returns.

        Runs record the manifest's hash, so stamps have a file of their own.
        """
        folder = work / "data"
        vocabulary = (folder / "vocabulary.txt").read_bytes()
        count = vocabulary.count(b"\n")
        manifest["counts"]["tokens in the vocabulary"] = count
        manifest = {
            "kind": self._config.kind,
            "arguments": self._arguments,
            **manifest,
            "vocabulary_sha256": hashlib.sha256(vocabulary).hexdigest(),
            "versions": {
                "python": platform.python_version(),
                "tensorflow-text": importlib.metadata.version(
                    "tensorflow-text"
                ),
            },
        }
        # A process that was killed left these.
        for leftover in folder.glob(".*.partial"):
            leftover.unlink()
        write_json(folder / "manifest.json", manifest)
        write_json(folder / _STAMPS, self._plan["files"])
        if self._path.exists():
            os.replace(self._path, work / "old")
        os.replace(folder, self._path)
        print(f"wrote {self._path}")
        return manifest
