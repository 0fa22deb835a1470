"""Both clients, asked in the same way."""

import asyncio
import inspect

from export import client


class InLoop:
    """An `AsyncClient` in a loop of its own, which runs each coroutine."""

    def __init__(self, make):
        self._runner = asyncio.Runner()
        try:
            self._client = self._run(make)
        except BaseException:
            self._runner.close()
            raise

    def _run(self, function, *args, **kwargs):
        async def call():
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(call())

    def __getattr__(self, name):
        value = getattr(self._client, name)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._run(value, *args, **kwargs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._run(self._client.close)
        self._runner.close()


def connect_in_loop(*args, **kwargs):
    return InLoop(lambda: client.connect_async(*args, **kwargs))


CONNECT = {"waiting": client.connect, "async": connect_in_loop}
