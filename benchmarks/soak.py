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
import contextlib
import dataclasses
import datetime
import functools
import os
import pathlib
import platform
import random
import shutil
import sys
import tempfile
import threading
import time
import typing
import urllib.parse
from collections.abc import Callable

import numpy as np
import psutil
import rich.console
import rich.progress

from benchmarks import bad_requests, common
from export import address as addresses
from export import client, files, grpc_transport, local_server, rest_transport
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


@dataclasses.dataclass(frozen=True)
class Config:
    """The model, and the load."""

    model_base_path: pathlib.Path
    """Folder of versions."""
    output: pathlib.Path
    """JSON file to write the measurements to."""
    model_name: str | None = None
    """The folder's by default."""
    minutes: float = 10
    clients: int = 32
    """Threads that ask."""
    swap_every: float | None = None
    """Seconds between new versions, which the benchmark then publishes."""
    seed: int = 0
    """Of texts and of the order of requests."""


def _texts(generator):
    """Texts of 0 to 199 words, drawn from the words of the golden texts."""
    words = " ".join(golden.TEXTS).split()
    return [
        " ".join(generator.choices(words, k=generator.randrange(200)))
        for _ in range(_TEXTS)
    ]


def _growth(samples, warm_up):
    """Returns the rise, in bytes, of a line fitted to `(second, bytes)`."""
    seconds, sizes = np.array([s for s in samples if s[0] >= warm_up]).T
    slope, _ = np.polyfit(seconds, sizes, 1)
    return slope * (seconds[-1] - seconds[0])


class Soak:
    """What the threads share: the load, and what came of it."""

    def __init__(
        self, server: local_server.LocalServer, name: str, config: Config
    ):
        self.server, self.name, self.config = server, name, config
        self.texts = _texts(random.Random(config.seed))
        self.bombs = {
            "texts": bad_requests.zipped(b'"",'),
            "lists": bad_requests.zipped(b"[],"),
        }
        self.start = time.monotonic()
        self.stopping = threading.Event()
        # (second of the run, latency in seconds)
        self.good: list[tuple[float, float]] = []
        self.bad: collections.Counter[str] = collections.Counter()
        self.failures: collections.Counter[str] = collections.Counter()
        # (second of the run, bytes), and those without a request under way
        self.memory: list[tuple[float, int]] = []
        self.at_rest: list[tuple[float, int]] = []
        self.resting = threading.Event()
        self.publishing = threading.Lock()
        self.swaps = 0
        with client.connect(server.grpc_url, name) as connection:
            self.signatures = connection.signatures()
            self.inputs = list(self.signatures[DEFAULT_SIGNATURE].inputs)
            # One at a time: what batches of any kind must answer, too.
            self.first = [
                connection.predict(dict.fromkeys(self.inputs, np.array([text])))
                for text in self.texts
            ]

    def now(self) -> float:
        """Returns the second of the run."""
        return time.monotonic() - self.start

    def _ask_right(self, link, generator):
        """Sends a good request; returns what is wrong with the answer."""
        count = generator.randint(1, _MOST_ROWS)
        chosen = generator.sample(range(_TEXTS), count)
        batch = np.array([self.texts[i].encode() for i in chosen], object)
        inputs = dict.fromkeys(self.inputs, batch)
        signature = self.signatures[DEFAULT_SIGNATURE]
        start = time.perf_counter()
        try:
            request = link.predict_request(inputs, DEFAULT_SIGNATURE)
            answer = link.read_prediction(
                link.send(request, bad_requests.SECONDS), signature, inputs
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

    def _ask_wrong(self, protocol, mistakes, generator):
        """Sends a bad request; returns what is wrong with the answer."""
        mistake, (make, expected) = generator.choice(list(mistakes.items()))
        try:
            status = make()
        except OSError as error:
            status = type(error).__name__
        self.bad[f"{protocol}: {mistake}"] += 1
        if status != expected:
            return f"{protocol}: {mistake}: {status}, not {expected}"
        return None

    def _client(self, number, turn):
        """Asks until the end, as one of many threads.

        `turn` is the barrier for all of them and `_rest`.
        """
        generator = random.Random(f"{self.config.seed} {number}")
        server, name = self.server, self.name
        with (
            contextlib.closing(
                grpc_transport.Grpc(addresses.parse(server.grpc_url), name)
            ) as calls,
            contextlib.closing(
                rest_transport.Rest(addresses.parse(server.rest_url), name)
            ) as rest,
        ):
            host = urllib.parse.urlsplit(server.grpc_url).netloc
            over_grpc = bad_requests.over_grpc(
                calls, host, name, self.signatures, self.inputs
            )
            over_rest = bad_requests.over_rest(
                server, name, self.inputs, self.bombs
            )
            sides = [("gRPC", calls, over_grpc), ("REST", rest, over_rest)]
            while not self.stopping.is_set():
                if self.resting.is_set():
                    turn.wait()
                    turn.wait()
                protocol, link, mistakes = generator.choice(sides)
                if generator.random() < _BAD_SHARE:
                    wrong = self._ask_wrong(protocol, mistakes, generator)
                else:
                    wrong = self._ask_right(link, generator)
                if wrong:
                    self.failures[wrong] += 1

    def _sample(self):
        """Notes the server's memory every second."""
        process = psutil.Process(self.server.process.pid)
        while not self.stopping.wait(1):
            try:
                self.memory.append((self.now(), process.memory_info().rss))
            except psutil.NoSuchProcess:
                self.failures["the server ended"] += 1
                return

    def _rest(self, turn):
        """Stops the clients for a while, and notes what the server keeps."""
        self.resting.set()
        turn.wait()
        with self.publishing:
            time.sleep(_REST_SECONDS)
        latest = self.memory[-3:]
        self.at_rest.append(min(latest, key=lambda sample: sample[1]))
        self.resting.clear()
        turn.wait()

    def _swap(self, folder):
        """Publishes the newest version again and again under the next number,
        but not while all rest."""
        while not self.stopping.wait(self.config.swap_every):
            with self.publishing:
                *older, newest = sorted(files.find_versions(folder))
                staging = folder / "staging"
                shutil.copytree(folder / str(newest), staging)
                staging.rename(folder / str(newest + 1))
                self.swaps += 1
                for number in older:
                    shutil.rmtree(folder / str(number))

    def run(self, folder: pathlib.Path, seconds: float) -> None:
        """Asks the server of a folder of versions until the time is over."""
        clients = self.config.clients
        turn = threading.Barrier(clients + 1, timeout=2 * bad_requests.SECONDS)
        targets: list[Callable[[], None]] = [
            self._sample,
            *(functools.partial(self._client, i, turn) for i in range(clients)),
        ]
        if self.config.swap_every:
            targets.append(functools.partial(self._swap, folder))
        self.start = time.monotonic()
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads:
            thread.start()
        try:
            rest_every = due = min(_REST_EVERY, seconds / 4)
            for second in rich.progress.track(
                range(round(seconds)), console=rich.console.Console(stderr=True)
            ):
                time.sleep(max(0, second + 1 - self.now()))
                if self.now() >= due:
                    self._rest(turn)
                    due += rest_every
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def figures(self, warm_up: float) -> dict[str, typing.Any]:
        """Returns what came out, as JSON values; `warm_up` in seconds."""
        latencies = np.array(self.good)
        seconds, rss = np.array(self.memory).T
        under_load = _growth(self.memory, warm_up)
        at_rest = _growth(self.at_rest, warm_up)
        if at_rest > _GROWTH_LIMIT:
            self.failures["memory grew"] += 1

        def mib(count):
            return round(count / 2**20, 1)

        after = f"after {warm_up:.0f} s"
        return {
            "seconds": round(seconds[-1]),
            "good_requests": len(latencies),
            "good_requests_per_second": round(len(latencies) / seconds[-1], 1),
            **{
                f"p{p}_ms": round(1e3 * np.percentile(latencies[:, 1], p), 1)
                for p in _PERCENTILES
            },
            "bad_requests": dict(sorted(self.bad.items())),
            "swaps": self.swaps,
            "memory_mib": {
                "start": mib(rss[0]),
                "most": mib(rss.max()),
                "at rest": [mib(kept) for _, kept in self.at_rest],
                f"growth at rest {after}": mib(at_rest),
                f"growth under load {after}": mib(under_load),
            },
            "failures": dict(self.failures),
        }

    def draw(self, path: pathlib.Path) -> None:
        """Draws latency and memory over the time."""
        picture = new_figure(10, 5)
        upper, lower = picture.subplots(2, 1, sharex=True)
        parts = np.array_split(np.array(sorted(self.good)), 60)
        parts = [part for part in parts if len(part)]
        for p in _PERCENTILES:
            upper.plot(
                [part[:, 0].mean() for part in parts],
                [1e3 * np.percentile(part[:, 1], p) for part in parts],
                label=f"p{p}",
            )
        upper.set_ylabel("good requests, ms")
        upper.legend(frameon=False, ncols=len(_PERCENTILES))
        for samples, style, color, label in (
            (self.memory, "-", "#4269d0", "under load"),
            (self.at_rest, "o", "#ff725c", "at rest"),
        ):
            seconds, rss = np.array(samples).T
            lower.plot(seconds, rss / 2**20, style, color=color, label=label)
        lower.legend(frameon=False, ncols=2, loc="lower right")
        lower.set_ylabel("server's memory, MiB")
        lower.set_xlabel("seconds")
        for axes in (upper, lower):
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#e5e5e5")
        save_figure(picture, path)


def main() -> int:
    config = common.parse(Config, "soak", __doc__)
    source = config.model_base_path.resolve()
    name = config.model_name or source.name
    numbers = files.find_versions(source)
    if not numbers:
        sys.exit(f"--model_base_path {source} has no version folder")
    seconds = 60 * config.minutes

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / name
        newest = str(max(numbers))
        shutil.copytree(source / newest, folder / newest)
        with local_server.running(name, folder) as server:
            soak = Soak(server, name, config)
            soak.run(folder, seconds)
    figures = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "processor": common.processor(),
        "cores": os.cpu_count(),
        "model": name,
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
