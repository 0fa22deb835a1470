"""Does the stand-in stay right, quick and small under mixed load?

    python -m benchmarks.soak --model_base_path DIR/NAME --output runs/soak.json

Serves a copy of the newest version. Many threads send good and bad requests
over both protocols. The exit status is 1 if a good request failed or got
another answer than the first time, if a bad request got the wrong status, or if
the server's memory at rest grew by more than 20 MiB after the first two
minutes. To measure it, all clients pause every minute until the server is idle.
Writes the measurements as JSON, and a picture of them beside it.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import json
import pathlib
import random
import shutil
import socket
import sys
import tempfile
import time
import typing
import urllib.parse
import zlib
from collections.abc import Callable

import numpy as np
import psutil
import requests
import rich.console

from benchmarks import common
from export import (
    address,
    client,
    files,
    grpc_transport,
    local_server,
    rest_transport,
)
from export.files import golden
from export.session import DEFAULT_SIGNATURE
from keras_fixedhead.files import write_json
from keras_fixedhead.pictures import new_figure, save_figure

_TOLERANCE = 1e-5
_BAD_SHARE = 0.2
_MOST_ROWS = 8
_TEXTS = 200
_WARM_UP_SECONDS = 120  # or half of a shorter run: caches and arenas fill
_GROWTH_LIMIT = 20 * 2**20  # bytes at rest after the warm-up, by a fitted line
_REST_EVERY = 60  # seconds, or a quarter of a shorter run
_REST_SECONDS = 8  # a new version loads, the old one goes, memory is given back
_PERCENTILES = (50, 95, 99)
_SECONDS = 60  # deadline of one request

# What sends a bad request and returns the status, and the right status; None
# for a request that gets no answer. By the name of the mistake.
Mistakes = dict[str, tuple[Callable[[], object], object]]


@dataclasses.dataclass(frozen=True)
class Config:
    model_base_path: pathlib.Path
    """Folder of versions."""
    output: pathlib.Path
    """JSON file to write the measurements to."""
    minutes: float = 10
    clients: int = 32
    """Threads that ask."""
    swap_every: float | None = None
    """Seconds between new versions, which the benchmark then publishes."""


class Soak:
    """The load on a server, and what came of it by the second of the run."""

    def __init__(
        self,
        server: local_server.LocalServer,
        folder: pathlib.Path,
        config: Config,
    ):
        self.server, self.folder, self.config = server, folder, config
        self.start = time.monotonic()
        # (second, latency in seconds)
        self.good: list[tuple[float, float]] = []
        self.bad: collections.Counter[str] = collections.Counter()
        self.failures: collections.Counter[str] = collections.Counter()
        # (second, bytes of the server), and those without a request under way
        self.memory: list[tuple[float, int]] = []
        self.at_rest: list[tuple[float, int]] = []
        self.swaps = 0
        generator = random.Random(0)
        words = " ".join(golden.TEXTS).split()
        self.texts = [
            " ".join(generator.choices(words, k=generator.randrange(200)))
            for _ in range(_TEXTS)
        ]
        with client.connect(server.grpc_url, folder.name) as connection:
            self.signatures = connection.signatures()
            self.inputs = list(self.signatures[DEFAULT_SIGNATURE].inputs)
            # One at a time: what batches of any kind must answer, too.
            self.first = [
                connection.predict(dict.fromkeys(self.inputs, np.array([text])))
                for text in self.texts
            ]
        target = (server, folder.name, self.signatures)
        self.mistakes = [*(bad_grpc(*target) | bad_rest(*target)).items()]

    def now(self) -> float:
        return time.monotonic() - self.start

    def run(self, seconds: float) -> None:
        self.start = time.monotonic()
        rounds = round(seconds / min(_REST_EVERY, seconds / 4))
        for number in common.progress(range(1, rounds + 1), "Asking"):
            end = number * seconds / rounds - _REST_SECONDS
            calls: list[Callable] = [self._sample]
            if self.config.swap_every:
                calls.append(self._swap)
            for i in range(self.config.clients):
                calls.append(functools.partial(self._ask, f"{number} {i}"))
            with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
                for done in [pool.submit(call, end) for call in calls]:
                    done.result()
            self._sample(self.now() + _REST_SECONDS)
            rest = self.memory[-3:]
            self.at_rest.append(min(rest, key=lambda sample: sample[1]))

    def _ask(self, seed, end):
        generator = random.Random(seed)
        name = self.folder.name
        links = [
            grpc_transport.Grpc(address.parse(self.server.grpc_url), name),
            rest_transport.Rest(address.parse(self.server.rest_url), name),
        ]
        while self.now() < end:
            if generator.random() < _BAD_SHARE:
                wrong = self._ask_wrong(generator)
            else:
                wrong = self._ask_right(generator.choice(links), generator)
            if wrong:
                self.failures[wrong] += 1
        for link in links:
            link.close()

    def _ask_right(self, link, generator):
        """Returns what is wrong with the answer to a good request."""
        count = generator.randint(1, _MOST_ROWS)
        chosen = generator.sample(range(_TEXTS), count)
        batch = np.array([self.texts[i].encode() for i in chosen], object)
        inputs = dict.fromkeys(self.inputs, batch)
        start = time.perf_counter()
        try:
            request = link.predict_request(inputs, DEFAULT_SIGNATURE)
            answer = link.read_prediction(
                link.send(request, _SECONDS),
                self.signatures[DEFAULT_SIGNATURE],
                inputs,
            )
        except client.ServerError as error:
            return f"good: {error.code}"
        self.good.append((self.now(), time.perf_counter() - start))
        for key, array in answer.items():
            expected = np.concatenate([self.first[i][key] for i in chosen])
            if expected.shape != array.shape or not np.allclose(
                array, expected, rtol=0, atol=_TOLERANCE
            ):
                return f"good: another {key}"
        return None

    def _ask_wrong(self, generator):
        """Returns what is wrong with the answer to a bad request."""
        mistake, (send, expected) = generator.choice(self.mistakes)
        try:
            status = send()
        except OSError as error:
            status = type(error).__name__
        self.bad[mistake] += 1
        if status != expected:
            return f"{mistake}: {status}, not {expected}"
        return None

    def _sample(self, end):
        process = psutil.Process(self.server.process.pid)
        while self.now() < end:
            self.memory.append((self.now(), process.memory_info().rss))
            time.sleep(1)

    def _swap(self, end):
        """Publishes the newest version again and again, as the next number."""
        while self.now() + self.config.swap_every < end:
            time.sleep(self.config.swap_every)
            *older, newest = sorted(files.find_versions(self.folder))
            staging = self.folder / "staging"
            shutil.copytree(self.folder / str(newest), staging)
            staging.rename(self.folder / str(newest + 1))
            self.swaps += 1
            for number in older:
                shutil.rmtree(self.folder / str(number))

    def figures(self, warm_up: float) -> dict[str, typing.Any]:
        """What came out, as JSON values; `warm_up` in seconds."""
        latencies = np.array(self.good)[:, 1]
        seconds, rss = np.array(self.memory).T
        mib = {
            "start": rss[0],
            "most": rss.max(),
            "growth at rest": _growth(self.at_rest, warm_up),
            "growth under load": _growth(self.memory, warm_up),
        }
        if mib["growth at rest"] > _GROWTH_LIMIT:
            self.failures["memory grew"] += 1
        return {
            "seconds": round(seconds[-1]),
            "warm_up_seconds": warm_up,
            "good_requests": len(latencies),
            "good_requests_per_second": round(len(latencies) / seconds[-1], 1),
            **{
                f"p{p}_ms": round(1e3 * np.percentile(latencies, p), 1)
                for p in _PERCENTILES
            },
            "bad_requests": dict(sorted(self.bad.items())),
            "swaps": self.swaps,
            "memory_mib": {k: round(v / 2**20, 1) for k, v in mib.items()},
            "at_rest_mib": [round(rss / 2**20) for _, rss in self.at_rest],
            "failures": dict(self.failures),
        }

    def draw(self, path: pathlib.Path) -> None:
        picture = new_figure(10, 5)
        upper, lower = picture.subplots(2, 1, sharex=True)
        parts = np.array_split(np.array(sorted(self.good)), 60)
        seconds = [part[:, 0].mean() for part in parts]
        for p in _PERCENTILES:
            times = [1e3 * np.percentile(part[:, 1], p) for part in parts]
            upper.plot(seconds, times, label=f"p{p}")
        for samples, style, label in (
            (self.memory, "-", "under load"),
            (self.at_rest, "o", "at rest"),
        ):
            seconds, rss = np.array(samples).T
            lower.plot(seconds, rss / 2**20, style, label=label)
        upper.set(ylabel="good requests, ms", ylim=(0, None))
        lower.set(xlabel="seconds", ylabel="memory, MiB", ylim=(0, None))
        for axes in (upper, lower):
            axes.legend(ncols=len(_PERCENTILES))
            axes.grid(axis="y", alpha=0.3)
        save_figure(picture, path)


def bad_rest(
    server: local_server.LocalServer, name: str, signatures: dict
) -> Mistakes:
    inputs = signatures[DEFAULT_SIGNATURE].inputs

    def post(body, path="", **headers):
        url = f"{server.rest_url}/v1/models/{name}{path}:predict"
        answer = requests.post(url, body, headers=headers, timeout=_SECONDS)
        return answer.status_code

    def rows(value, path="", **others):
        row = dict.fromkeys(inputs, value)
        return post(json.dumps({"instances": [row], **others}), path)

    def columns(value):
        return post(json.dumps({"inputs": dict.fromkeys(inputs, value)}))

    def zipped(item):
        zipper = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        parts = [zipper.compress(item * 10**5) for _ in range(250)]
        body = b"".join([*parts, zipper.flush()])
        return lambda: post(body, **{"Content-Encoding": "gzip"})

    def abort():
        """Hangs up in the middle of a request."""
        url = urllib.parse.urlsplit(server.rest_url)
        head = f"POST /v1/models/{name}:predict HTTP/1.1\r\nHost: localhost\r\n"
        with socket.create_connection((url.hostname, url.port), _SECONDS) as c:
            c.sendall(f"{head}Content-Length: 1000\r\n\r\nhalf of".encode())

    return {
        "REST: broken JSON": (lambda: post(b'{"instances": ["a'), 400),
        "REST: unknown signature": (lambda: rows("a", signature_name="x"), 400),
        "REST: ragged rows": (lambda: columns([["a"], ["a", "b"]]), 400),
        "REST: wrong type": (lambda: rows(1), 400),
        "REST: unknown model": (lambda: rows("a", "_no"), 404),
        "REST: unknown version": (lambda: rows("a", "/versions/99"), 404),
        "REST: many texts": (lambda: columns(["a"] * 10_000), 413),
        "REST: zipped texts": (zipped(b'"",'), 413),
        "REST: zipped lists": (zipped(b"[],"), 413),
        "REST: aborted": (abort, None),
    }


def bad_grpc(
    server: local_server.LocalServer, name: str, signatures: dict
) -> Mistakes:
    link = grpc_transport.Grpc(address.parse(server.grpc_url), name)

    def request(array, signature=DEFAULT_SIGNATURE, shape=()):
        known = signatures.get(signature, signatures[DEFAULT_SIGNATURE])
        inputs = dict.fromkeys(known.inputs, array)
        made = link.predict_request(inputs, signature)
        for proto in made[1].inputs.values():
            for dim, size in zip(proto.tensor_shape.dim, shape):
                dim.size = size
        return made

    def send(request):
        try:
            link.send(request, _SECONDS)
        except client.ServerError as error:
            return error.code
        return "OK"

    text = np.array([b"a"], object)
    invalid, exhausted = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"
    bad = {
        "unknown signature": (request(text, "no"), "FAILED_PRECONDITION"),
        "nested text": (request(text[None]), invalid),
        "wrong type": (request(np.array([1])), invalid),
        "missing input": (link.predict_request({}, DEFAULT_SIGNATURE), invalid),
        "many texts": (request(np.repeat(text, 10_000)), exhausted),
        "100 MiB": (request(text * (100 * 2**20)), exhausted),
    }
    if "from_token_ids" in signatures:
        ids = functools.partial(request, signature="from_token_ids")
        empty = np.zeros([0, 0], np.int32)
        bad["huge ids"] = ids(np.full([2, 3], 2**30, np.int32)), invalid
        # Shapes without values.
        bad["filled up"] = ids(empty, shape=(8192, 96)), exhausted
        bad["negative shape"] = ids(empty, shape=(-1, 3)), invalid
    return {
        f"gRPC: {mistake}": (functools.partial(send, request), status)
        for mistake, (request, status) in bad.items()
    }


def _growth(samples, warm_up):
    """Returns the rise, in bytes, of a line fitted to `(second, bytes)`."""
    seconds, sizes = np.array([s for s in samples if s[0] >= warm_up]).T
    slope, _ = np.polyfit(seconds, sizes, 1)
    return slope * (seconds[-1] - seconds[0])


def main() -> int:
    config = common.parse(Config)
    source = config.model_base_path.resolve()
    newest = str(max(files.find_versions(source)))
    seconds = 60 * config.minutes
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / source.name
        shutil.copytree(source / newest, folder / newest)
        with local_server.running(folder.name, folder) as server:
            soak = Soak(server, folder, config)
            soak.run(seconds)
    figures = {
        "environment": common.environment("tensorflow"),
        "model": source.name,
        "clients": config.clients,
        **soak.figures(min(_WARM_UP_SECONDS, seconds / 2)),
    }
    config.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(config.output, figures)
    soak.draw(config.output.with_suffix(".png"))
    rich.console.Console().print_json(data=figures)
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
