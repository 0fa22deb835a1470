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
from collections.abc import Iterator, Sequence

from keras_fixedhead.files import replaced, write_json
from training.corpus.folder import read_manifest
from training.engine.cli import held
from training.prepare.configs import PairsConfig, StreamConfig, TextConfig
from training.prepare.sources import stamps

_STAMPS = "sources.json"


class Output:
    """The data folder that a command is to write.

    `arguments` are the flags that decide its content, as JSON values;
    `changes` replace some of them. `stamps` are those of the files `names`.
    `made_before` is the manifest if the folder is there already, made with the
    same arguments.
    """

    def __init__(
        self,
        config: PairsConfig | TextConfig | StreamConfig,
        kind: str,
        names: Sequence[str],
        **changes: str,
    ):
        self._path = config.output
        self._kind = kind
        self._overwrite = config.overwrite
        arguments = dataclasses.asdict(config)
        for name in ("output", "overwrite", "workers"):
            arguments.pop(name, None)
        self.arguments = as_json(arguments | changes)
        self.stamps = stamps(names)
        self.made_before = self._read()

    def _read(self) -> dict | None:
        path = self._path
        if not path.exists():
            return None
        try:
            manifest, _ = read_manifest(path, self._kind)
        except (OSError, ValueError):
            raise ValueError(
                "`output` must be a new folder, or one that this command "
                f"wrote. Received: {str(path)!r}"
            ) from None
        if self._overwrite:
            return None
        if manifest["arguments"] != self.arguments:
            raise ValueError(
                f"`output` {str(path)!r} was made with other arguments: "
                f"{manifest['arguments']}. Choose another folder or pass "
                "--overwrite"
            )
        file = path / _STAMPS  # older folders have none
        recorded = json.loads(file.read_bytes()) if file.exists() else None
        # If a source is gone, the folder cannot be made again.
        if None not in (self.stamps, recorded) and self.stamps != recorded:
            raise ValueError(
                f"`output` {str(path)!r} was made of files that have changed "
                "since. Choose another folder or pass --overwrite"
            )
        print(f"{path}: made before, with the same arguments")
        return manifest

    @contextlib.contextmanager
    def new_folder(self) -> Iterator[pathlib.Path]:
        """Yields a temporary folder beside it, to write and `finish`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._temporary_folder() as temporary:
            folder = pathlib.Path(temporary, "new")
            folder.mkdir()
            yield folder

    def finish(self, folder: pathlib.Path, manifest: dict) -> dict:
        """Adds the manifest to `folder`, on the same disk, and moves it here.

        Returns the manifest with the kind, arguments, vocabulary's hash and
        versions. The stamps have a file of their own because runs record the
        hash of the manifest.
        """
        vocabulary = (folder / "vocabulary.txt").read_bytes()
        manifest = {
            "kind": self._kind,
            "arguments": self.arguments,
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
        write_json(folder / _STAMPS, self.stamps)
        with self._temporary_folder() as old:
            if self._path.exists():
                os.replace(self._path, pathlib.Path(old, "old"))
            os.replace(folder, self._path)
        print(f"wrote {self._path}")
        return manifest

    def _temporary_folder(self):
        return tempfile.TemporaryDirectory(
            prefix=f".{self._path.name}.", dir=self._path.parent
        )

    @contextlib.contextmanager
    def work_folder(self, sources: dict) -> Iterator[pathlib.Path]:
        """Yields the folder beside it that keeps an unfinished run.

        A run with the same arguments and sources is continued; one with others
        is an error, unless the command overwrites.

        The folder has the folders `data` and, for what is finished, `parts`.
        It is removed at the end, also after a `ValueError`, which the same
        command would raise again. After another error it stays if `parts` is
        not empty.
        """
        plan = {
            "arguments": self.arguments,
            "sources": as_json(sources),
            "files": self.stamps,
        }
        work = self._path.with_name(f".{self._path.name}.partial")
        data, parts, path = work / "data", work / "parts", work / "plan.json"
        work.mkdir(parents=True, exist_ok=True)
        busy = f"`output` {str(self._path)!r} is being made by another process"
        with held(work, busy):
            recorded = json.loads(path.read_bytes()) if path.exists() else None
            if recorded != plan:
                if not self._overwrite and _any_in(parts):
                    raise ValueError(
                        f"{work} holds an unfinished run, which differs in "
                        f"{' and '.join(_differences(recorded, plan))}. "
                        "Continue it with the same arguments and sources, or "
                        "pass --overwrite to start again"
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


def as_json(values: dict) -> dict:
    """Converts tuples to lists and paths to strings, as in a JSON file."""
    return json.loads(json.dumps(values, default=os.fspath))


def _any_in(folder):
    return folder.exists() and any(folder.iterdir())


def _differences(recorded, plan):
    """Names the arguments that differ, or else the parts of the plan."""
    was, now = recorded["arguments"], plan["arguments"]
    return [name for name in now if was.get(name) != now[name]] or [
        name for name in plan if recorded.get(name) != plan[name]
    ]
