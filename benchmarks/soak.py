"""Does the stand-in stay right, quick and small under mixed load?

    python -m benchmarks.soak --model_base_path DIR/NAME --output runs/soak.json

Serves a copy of the newest version and asks it from many threads over both
protocols, good requests and bad ones. The exit status is 1 if a good request
failed or was answered otherwise than the first time, if a bad one got another
status than it should, or if the server kept more than 20 MiB after the first
two minutes. What it keeps is its memory at rest: every minute all clients wait
until it has nothing to do. With `--swap_every` the benchmark also publishes a
new version at that interval. It writes the figures as JSON and draws them in a
picture beside it.
"""

import argparse
import collections
import contextlib
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
import urllib.parse

import numpy as np
import psutil
import rich.console
import rich.progress

from benchmarks import bad_requests
from export import address as addresses
from export import client, files, grpc_transport, local_server, rest_transport
from export.files import golden
from export.session import DEFAULT_SIGNATURE
from keras_fixedhead.files import write_json
from keras_fixedhead.pictures import new_figure, save_figure

TOLERANCE = 1e-5
BAD_SHARE = 0.2
MOST_ROWS = 8
TEXTS = 200
WARM_UP_SECONDS = 120  # or half of a shorter run: caches and arenas fill
GROWTH_LIMIT = 20 * 2**20  # bytes at rest after the warm-up, by the fitted line
REST_EVERY = 60  # seconds, or a quarter of a shorter run
REST_SECONDS = 8  # a new version loads, the old one goes, memory is given back
PERCENTILES = (50, 95, 99)


def texts(generator):
    """Texts of 0 to 199 words, drawn from the words of the golden texts."""
    words = " ".join(golden.TEXTS).split()
    return [
        " ".join(generator.choices(words, k=generator.randrange(200)))
        for _ in range(TEXTS)
    ]


def _growth(samples, warm_up):
    """Returns the rise, in bytes, of a line fitted to `(second, bytes)`."""
    seconds, sizes = np.array([s for s in samples if s[0] >= warm_up]).T
    slope, _ = np.polyfit(seconds, sizes, 1)
    return slope * (seconds[-1] - seconds[0])


class Soak:
    """What the threads share: the load, and what came of it.

    Args:
        server: a `local_server.LocalServer`.
        name: the model's name.
        seed: int, of texts and of the order of requests.
    """

    def __init__(self, server, name, seed):
        self.server, self.name, self.seed = server, name, seed
        self.texts = texts(random.Random(seed))
        self.bombs = {
            "texts": bad_requests.zipped(b'"",'),
            "lists": bad_requests.zipped(b"[],"),
        }
        self.start = time.monotonic()
        self.stopping = threading.Event()
        self.good = []  # (second of the run, latency in seconds)
        self.bad = collections.Counter()
        self.failures = collections.Counter()
        self.memory = []  # (second of the run, bytes)
        self.at_rest = []  # the same, without a request under way
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

    def now(self):
        return time.monotonic() - self.start

    def ask_right(self, link, generator):
        """Sends a good request; returns what is wrong with the answer."""
        chosen = generator.sample(range(TEXTS), generator.randint(1, MOST_ROWS))
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
        for key in answer:
            expected = np.concatenate([self.first[i][key] for i in chosen])
            if expected.shape != answer[key].shape or not np.allclose(
                answer[key], expected, rtol=0, atol=TOLERANCE
            ):
                return f"good: another {key}"
        return None

    def ask_wrong(self, protocol, mistakes, generator):
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

    def client(self, number, turn):
        """Asks until the end, as one of many threads.

        Args:
            number: int, which of them.
            turn: a `threading.Barrier` for all of them and `rest`.
        """
        generator = random.Random(f"{self.seed} {number}")
        address = urllib.parse.urlsplit(self.server.grpc_url).netloc
        over_grpc = addresses.parse(self.server.grpc_url)
        over_rest = addresses.parse(self.server.rest_url)
        with (
            contextlib.closing(
                grpc_transport.Grpc(over_grpc, self.name)
            ) as calls,
            contextlib.closing(
                rest_transport.Rest(over_rest, self.name)
            ) as rest,
        ):
            sides = [
                (
                    "gRPC",
                    calls,
                    bad_requests.over_grpc(
                        calls, address, self.name, self.signatures, self.inputs
                    ),
                ),
                (
                    "REST",
                    rest,
                    bad_requests.over_rest(
                        self.server, self.name, self.inputs, self.bombs
                    ),
                ),
            ]
            while not self.stopping.is_set():
                if self.resting.is_set():
                    turn.wait()
                    turn.wait()
                protocol, link, mistakes = generator.choice(sides)
                if generator.random() < BAD_SHARE:
                    wrong = self.ask_wrong(protocol, mistakes, generator)
                else:
                    wrong = self.ask_right(link, generator)
                if wrong:
                    self.failures[wrong] += 1

    def sample(self):
        """Notes the server's memory every second."""
        process = psutil.Process(self.server.process.pid)
        while not self.stopping.wait(1):
            try:
                self.memory.append((self.now(), process.memory_info().rss))
            except psutil.NoSuchProcess:
                self.failures["the server ended"] += 1
                return

    def rest(self, turn):
        """Stops the clients for a while, and notes what the server keeps."""
        self.resting.set()
        turn.wait()
        with self.publishing:
            time.sleep(REST_SECONDS)
        latest = self.memory[-3:]
        self.at_rest.append(min(latest, key=lambda sample: sample[1]))
        self.resting.clear()
        turn.wait()

    def swap(self, folder, seconds):
        """Publishes a version again and again, but not while all rest."""
        while not self.stopping.wait(seconds):
            with self.publishing:
                self.publish(folder)

    def publish(self, folder):
        """Publishes the newest version again under the next number."""
        numbers = sorted(files.find_versions(folder))
        staging = folder / "staging"
        shutil.copytree(folder / str(numbers[-1]), staging)
        staging.rename(folder / str(numbers[-1] + 1))
        self.swaps += 1
        for number in numbers[:-1]:
            shutil.rmtree(folder / str(number))

    def run(self, folder, clients, seconds, swap_every):
        """Runs every thread until the time is over."""
        targets = [self.sample]
        turn = threading.Barrier(clients + 1, timeout=2 * bad_requests.SECONDS)
        targets += [
            functools.partial(self.client, number, turn)
            for number in range(clients)
        ]
        if swap_every:
            targets.append(functools.partial(self.swap, folder, swap_every))
        self.start = time.monotonic()
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads:
            thread.start()
        try:
            rest_every = due = min(REST_EVERY, seconds / 4)
            for second in rich.progress.track(
                range(round(seconds)), console=rich.console.Console(stderr=True)
            ):
                time.sleep(max(0, second + 1 - self.now()))
                if self.now() >= due:
                    self.rest(turn)
                    due += rest_every
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def figures(self, warm_up):
        """Returns what came out, as JSON-able numbers."""
        latencies = np.array(self.good)
        seconds, rss = np.array(self.memory).T
        under_load = _growth(self.memory, warm_up)
        at_rest = _growth(self.at_rest, warm_up)
        if at_rest > GROWTH_LIMIT:
            self.failures["memory grew"] += 1
        return {
            "seconds": round(seconds[-1]),
            "good_requests": len(latencies),
            "good_requests_per_second": round(len(latencies) / seconds[-1], 1),
            **{
                f"p{p}_ms": round(1e3 * np.percentile(latencies[:, 1], p), 1)
                for p in PERCENTILES
            },
            "bad_requests": dict(sorted(self.bad.items())),
            "swaps": self.swaps,
            "memory_mib": {
                "start": round(rss[0] / 2**20, 1),
                "most": round(rss.max() / 2**20, 1),
                "at rest": [round(kept / 2**20, 1) for _, kept in self.at_rest],
                f"growth at rest after {warm_up:.0f} s": round(
                    at_rest / 2**20, 1
                ),
                f"growth under load after {warm_up:.0f} s": round(
                    under_load / 2**20, 1
                ),
            },
            "failures": dict(self.failures),
        }

    def draw(self, path):
        """Draws latency and memory over the time."""
        picture = new_figure(10, 5)
        upper, lower = picture.subplots(2, 1, sharex=True)
        second, latency = np.array(sorted(self.good)).T
        parts = np.array_split(np.arange(len(second)), 60)
        for p in PERCENTILES:
            upper.plot(
                [second[part].mean() for part in parts if len(part)],
                [
                    1e3 * np.percentile(latency[part], p)
                    for part in parts
                    if len(part)
                ],
                label=f"p{p}",
            )
        upper.set_ylabel("good requests, ms")
        upper.legend(frameon=False, ncols=len(PERCENTILES))
        seconds, rss = np.array(self.memory).T
        lower.plot(seconds, rss / 2**20, color="#4269d0", label="under load")
        seconds, rss = np.array(self.at_rest).T
        lower.plot(seconds, rss / 2**20, "o", color="#ff725c", label="at rest")
        lower.legend(frameon=False, ncols=2, loc="lower right")
        lower.set_ylabel("server's memory, MiB")
        lower.set_xlabel("seconds")
        for axes in (upper, lower):
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#e5e5e5")
        save_figure(picture, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=pathlib.Path, required=True)
    parser.add_argument("--model_name", help="the folder's by default")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--swap_every", type=float, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    source = args.model_base_path.resolve()
    name = args.model_name or source.name
    numbers = files.find_versions(source)
    if not numbers:
        sys.exit(f"--model_base_path {source} has no version folder")
    seconds = 60 * args.minutes

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / name
        newest = str(max(numbers))
        shutil.copytree(source / newest, folder / newest)
        with local_server.running(name, folder) as server:
            soak = Soak(server, name, args.seed)
            soak.run(folder, args.clients, seconds, args.swap_every)
    figures = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "model": name,
        "clients": args.clients,
        **soak.figures(min(WARM_UP_SECONDS, seconds / 2)),
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.output, figures)
    soak.draw(args.output.with_suffix(".png"))
    rich.console.Console().print_json(data=figures)
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
