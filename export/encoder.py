"""Where `export.index` and `export.search` have their embeddings from.

Shape letters: N texts, D embedding size.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib

from export import batches, client, local_server
from export.files import versions
from export.session import SavedModelSession, StatusError

_SAVED_MODEL = "saved_model.pb"
_READ_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Model:
    """Which model an embedding is of.

    Attributes:
        name: str.
        version: int; None of a SavedModel whose folder is no number.
        sha256: str, of the SavedModel's graph, weights and vocabulary; None
            of a server's, which shows none of them.
    """

    name: str
    version: int | None
    sha256: str | None = None

    def __str__(self):
        version = "" if self.version is None else f" version {self.version}"
        return f"{self.name}{version}"

    @property
    def key(self):
        """What has to be equal for two embeddings to be comparable."""
        return self.sha256 or [self.name, self.version]

    def difference(self, other):
        """Says how another model differs by what is known of both; or None."""
        if self.sha256 and other.sha256:
            if self.sha256 == other.sha256:
                return None
            if str(self) == str(other):
                return (
                    f"both are called {self}, but their files have the "
                    f"SHA-256 {self.sha256[:12]}... and "
                    f"{other.sha256[:12]}..."
                )
        elif str(self) == str(other):
            return None
        return f"one is {self}, the other {other}"


@dataclasses.dataclass
class Encoder:
    """A model that embeds texts.

    Attributes:
        model: its `Model`.
        ask: function of a batch (string array, dtype object) and the name of
            a signature to float32 `[B, D]`; several threads may call it.
        signatures: `{name: SignatureDef}`.
        batch_size: int, the most texts of a batch.
        threads: int, batches under way at once.
        requests: int, the batches that were answered.
    """

    model: Model
    ask: callable
    signatures: dict
    batch_size: int
    threads: int
    requests: int = 0

    def embed(self, texts, kind, on_batch=None):
        """Embeds texts.

        Args:
            texts: list of N `str`, at least one.
            kind: "document" or "query": the prompt, where the model has it.
            on_batch: function called with the number of texts of each batch
                that is done.

        Returns:
            float32 array `[N, D]`, in the order of `texts`.

        Raises:
            ValueError: if the model embeds no texts, or refuses these.
            ServerError: if the server does, is away, or takes too long.
        """
        signature = batches.signature_of(self.signatures, kind)

        def count(texts_done):
            self.requests += 1
            if on_batch:
                on_batch(texts_done)

        return batches.embed(
            lambda batch: self.ask(batch, signature),
            batches.Plan(texts, self.batch_size, self.threads),
            count,
        )


@dataclasses.dataclass(frozen=True)
class Source:
    """What to embed with: one of the first three flags."""

    saved_model: pathlib.Path | None = None
    """A folder of versions, as export.saved_model writes it, or one version:
    embed in this process, by TensorFlow's C++."""

    server: str | None = None
    """A running server: grpc://HOST:PORT or http://HOST:PORT, with TLS
    grpcs://HOST:PORT or https://HOST."""

    serve: pathlib.Path | None = None
    """A folder of versions to serve while this runs."""

    model_name: str | None = None
    """The model's name, which a server needs; that of its folder by
    default."""

    version: int | None = None
    """The number of the version; the newest by default."""

    ca: pathlib.Path | None = None
    """A PEM file of the authorities that the server's certificate may be of;
    the system's by default."""

    certificate: pathlib.Path | None = None
    """A PEM file of the client's certificate, for a server that wants one."""

    key: pathlib.Path | None = None
    """A PEM file of its key; in the same file by default."""

    headers: pathlib.Path | None = None
    """A JSON file of headers to send to the server, such as
    {"Authorization": "Bearer ..."}. Command lines are no place for secrets:
    others can read them."""

    batch_size: int = 32
    """Texts of a batch; a server that batches refuses more than its
    max_batch_size."""

    threads: int | None = None
    """Batches embedded at once; as many as there are processors by
    default. 1 spreads each batch over all of them."""

    def check(self):
        """Raises a `ValueError` that names the flags that will not do."""
        given = {
            "saved_model": self.saved_model,
            "server": self.server,
            "serve": self.serve,
        }
        if sum(value is not None for value in given.values()) != 1:
            received = ", ".join(f"{k}={v}" for k, v in given.items())
            raise ValueError(
                "Pass one of `saved_model`, a folder of versions, `server`, "
                "the URL of a running server, or `serve`, a folder of "
                f"versions to serve; received {received}."
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
        for name in ("batch_size", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be positive, not {value}.")

    def base(self, cls):
        """Returns what a base class of these arguments holds of them."""
        fields = dataclasses.fields(cls)
        return cls(**{f.name: getattr(self, f.name) for f in fields})

    @contextlib.contextmanager
    def started(self):
        """Gives the source, with a server where it wants one, as a context.

        Raises:
            ValueError: if the flags will not do.
            ServerError: if the server does not start.
        """
        self.check()
        if self.serve is None:
            yield self
            return
        name = self.model_name or self.serve.resolve().name
        with local_server.running(name, self.serve) as server:
            yield dataclasses.replace(
                self, serve=None, server=server.grpc_url, model_name=name
            )

    def pinned(self, model):
        """Returns the source of this very version, whatever comes later."""
        return dataclasses.replace(
            self, model_name=model.name, version=model.version
        )

    @contextlib.contextmanager
    def open(self):
        """Gives the `Encoder`, as a context.

        Raises:
            ValueError: if there is no such model, or it does not load.
            ServerError: if the server refuses, or is away.
        """
        threads = self.threads or len(os.sched_getaffinity(0))
        if self.server is not None:
            yield from self._ask_server(threads)
        else:
            yield from self._run_saved_model(threads)

    def _connect(self, version):
        return client.connect(
            self.server,
            self.model_name,
            version=version,
            headers=None if self.headers is None else _read(self.headers),
            ca=self.ca,
            certificate=self.certificate,
            key=self.key,
        )

    def _ask_server(self, threads):
        version = self.version
        if version is None:
            with self._connect(version) as newest:
                version = newest.version()
        # A server that is given a newer version while this runs does not mix
        # embeddings of the two.
        with self._connect(version) as connection:

            def ask(batch, signature):
                answer = connection.predict({"text": batch}, signature)
                return answer[batches.OUTPUT]

            yield Encoder(
                Model(self.model_name, version),
                ask,
                connection.signatures(),
                self.batch_size,
                threads,
            )

    def _run_saved_model(self, threads):
        folder, version = _find(self.saved_model, self.version)
        name = self.model_name or (
            folder.name if version is None else folder.parent.name
        )
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
            yield Encoder(
                Model(name, version, _fingerprint(folder)),
                ask,
                session.signatures,
                self.batch_size,
                threads,
            )
        finally:
            session.close()


def _read(path):
    """Returns the headers of a JSON file."""
    try:
        headers = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # which must not show a secret
        raise ValueError(f"`headers` {path} is not JSON.") from error
    if not isinstance(headers, dict):
        raise ValueError(f"`headers` {path} must be a JSON object.")
    return headers


def _find(saved_model, version):
    """Returns the folder of a version, and its number or None."""
    folder = saved_model.resolve()
    if (folder / _SAVED_MODEL).is_file():
        name = folder.name
        number = int(name) if name.isascii() and name.isdecimal() else None
        if version not in (None, number):
            raise ValueError(
                f"`version` is {version}, but `saved_model` {saved_model} is "
                f"{'no numbered version' if number is None else number}."
            )
        return folder, number
    found = versions.find(folder) if folder.is_dir() else {}
    if version is None and found:
        version = max(found)
    if version not in found:
        there = ", ".join(map(str, sorted(found))) or "none"
        raise ValueError(
            f"`saved_model` {saved_model} must be a SavedModel or a folder of "
            f"versions; versions there: {there}"
            + ("" if version is None else f", wanted: {version}")
            + ". Export one with `python -m export.saved_model`."
        )
    return found[version], version


def _fingerprint(folder):
    """Returns the SHA-256 of what the loader reads."""
    digest = hashlib.sha256()
    for part in (_SAVED_MODEL, "variables/*", "assets/*"):
        for path in sorted(folder.glob(part)):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with open(path, "rb") as stream:
                while content := stream.read(_READ_BYTES):
                    digest.update(content)
    return digest.hexdigest()
