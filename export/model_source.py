"""The model that `export.index` and `export.search` embed with.

Shape letters: N texts, D embedding size.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from export import batches, client, files, local_server
from export.session import SavedModelSession, StatusError

_SAVED_MODEL = "saved_model.pb"


@dataclasses.dataclass(frozen=True)
class Model:
    """The identity of a model that embeds."""

    name: str
    version: int | None  # None if the folder of a SavedModel is not a number
    # Of the graph, weights and vocabulary; a server hides them.
    sha256: str | None = None

    def __str__(self):
        version = "" if self.version is None else f" version {self.version}"
        return f"{self.name}{version}"

    @property
    def key(self) -> str | list:
        """Equal keys make embeddings comparable."""
        return self.sha256 or [self.name, self.version]

    def difference(self, other: "Model") -> str | None:
        """Says how another model differs, by what is known of both."""
        one, two = str(self), str(other)
        if self.sha256 is not None and other.sha256 is not None:
            if self.sha256 == other.sha256:
                return None
            one += f" with the SHA-256 {self.sha256}"
            two += f" with {other.sha256}"
        return None if one == two else f"one is {one}, the other {two}"


@dataclasses.dataclass
class Encoder:
    """An open model that embeds texts."""

    model: Model
    # Maps a batch (strings `[B]`, dtype object) and the name of a signature to
    # float32 `[B, D]`; several threads may call it.
    ask: Callable[[np.ndarray, str], np.ndarray]
    signatures: dict  # {name: SignatureDef}
    batch_size: int
    threads: int
    requests: int = 0  # batches answered

    def embed(
        self, texts: list[str], kind: str, on_batch: batches.OnBatch = None
    ) -> np.ndarray:
        """Embeds N texts, at least one, as "document" or "query": float32
        `[N, D]`. `on_batch` gets the number of texts of each batch."""
        signature = batches.signature_of(self.signatures, kind)
        plan = batches.Plan(texts, self.batch_size, self.threads, on_batch)
        found = batches.embed(lambda batch: self.ask(batch, signature), plan)
        self.requests += len(plan.batches)
        return found


@dataclasses.dataclass(frozen=True)
class Source:
    """The model to embed with: one of the first three flags."""

    saved_model: pathlib.Path | None = None
    """A folder of versions, as export.saved_model writes it, or one version:
    embed in this process, with TensorFlow's C++ API."""

    server: str | None = None
    """A running server: grpc://HOST:PORT or http://HOST:PORT, with TLS
    grpcs://HOST:PORT or https://HOST."""

    serve: pathlib.Path | None = None
    """A folder of versions to serve while this runs."""

    model_name: str | None = None
    """The model's name, required for a server; by default that of its
    folder."""

    version: int | None = None
    """The number of the version; the newest by default."""

    ca: pathlib.Path | None = None
    """A PEM file of the certificate authorities to trust; the system's by
    default."""

    certificate: pathlib.Path | None = None
    """A PEM file of the client's certificate, if the server requires one."""

    key: pathlib.Path | None = None
    """A PEM file of its key; by default in the same file."""

    headers: pathlib.Path | None = None
    """A JSON file of headers to send to the server, such as
    {"Authorization": "Bearer ..."}: a file, since others can read command
    lines."""

    batch_size: int = 32
    """Texts of a batch; at most the server's max_batch_size."""

    threads: int | None = None
    """Batches embedded at once; by default one per processor. 1 spreads each
    batch over all processors."""

    def check(self) -> None:
        """Raises a `ValueError` that names the wrong flags."""
        given = (self.saved_model, self.server, self.serve)
        if given.count(None) != 2:
            raise ValueError(
                f"Pass one of `saved_model`, `server` and `serve`: {given}."
            )
        if self.server is not None and self.model_name is None:
            raise ValueError(
                f"`model_name` must be the model's name on {self.server}."
            )
        for name in ("ca", "certificate", "key", "headers"):
            if self.server is None and getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}` is for `server`, the URL of a running server."
                )

    def base(self, cls: type) -> Any:
        """Returns the fields of a base class as an instance of it."""
        fields = dataclasses.fields(cls)
        return cls(**{f.name: getattr(self, f.name) for f in fields})

    @contextlib.contextmanager
    def started(self) -> Iterator["Source"]:
        """Starts the server of `serve`; yields the source with its URL."""
        self.check()
        if self.serve is None:
            yield self
            return
        name = self.model_name or self.serve.resolve().name
        with local_server.running(name, self.serve) as server:
            yield dataclasses.replace(
                self, serve=None, server=server.grpc_url, model_name=name
            )

    @contextlib.contextmanager
    def open(self) -> Iterator[Encoder]:
        """Yields the encoder."""
        threads = self.threads or len(os.sched_getaffinity(0))
        if self.server is None:
            opened = self._run_saved_model(threads)
        else:
            opened = self._ask_server()
        with opened as (model, ask, signatures):
            yield Encoder(model, ask, signatures, self.batch_size, threads)

    @contextlib.contextmanager
    def _ask_server(self):
        headers = {}
        if self.headers is not None:
            try:
                headers = dict(json.loads(self.headers.read_text("utf-8")))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"`headers` {self.headers} must be a JSON object."
                ) from error
        connect = functools.partial(
            client.connect,
            self.server,
            self.model_name,
            headers=headers,
            ca=self.ca,
            certificate=self.certificate,
            key=self.key,
        )
        version = self.version
        if version is None:
            with connect() as newest:
                version = newest.version()
        # If the server loads a newer version meanwhile, embeddings of the two
        # do not mix.
        with connect(version=version) as connection:

            def ask(batch, signature):
                answer = connection.predict({"text": batch}, signature)
                return answer[batches.OUTPUT]

            model = Model(self.model_name, version)
            yield model, ask, connection.signatures()

    @contextlib.contextmanager
    def _run_saved_model(self, threads):
        folder, version = _find(self.saved_model, self.version)
        named = folder if version is None else folder.parent
        name = self.model_name or named.name
        op_threads = max(len(os.sched_getaffinity(0)) // threads, 1)
        try:
            session = SavedModelSession(folder, op_threads)
        except StatusError as error:
            raise ValueError(
                f"`saved_model` {folder} does not load: {error}"
            ) from error

        def ask(batch, signature):
            try:
                answer = session.run(
                    {"text": batch}, signature, [batches.OUTPUT]
                )
            except StatusError as error:
                raise ValueError(f"{folder} refuses texts: {error}") from error
            return answer[batches.OUTPUT]

        try:
            model = Model(name, version, _fingerprint(folder))
            yield model, ask, session.signatures
        finally:
            session.close()


def _find(saved_model, version):
    """Returns the folder of a version, and its number or None."""
    folder = saved_model.resolve()
    if (folder / _SAVED_MODEL).is_file():
        found = {int(folder.name) if folder.name.isdecimal() else None: folder}
    else:
        found = files.find_versions(folder)
    if version is None and found:
        version = max(found)
    if version not in found:
        there = ", ".join(map(str, sorted(found))) or "none"
        wanted = "any" if version is None else version
        raise ValueError(
            f"`saved_model` {saved_model} must be a SavedModel or a folder of "
            f"versions; versions there: {there}, wanted: {wanted}."
        )
    return found[version], version


def _fingerprint(folder):
    """Returns the SHA-256 of what the loader reads; indexes hold it."""
    digest = hashlib.sha256()
    for part in (_SAVED_MODEL, "variables/*", "assets/*"):
        for path in sorted(folder.glob(part)):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with open(path, "rb") as stream:
                hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()
