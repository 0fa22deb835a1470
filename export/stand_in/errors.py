"""The errors that several parts of the stand-in answer with."""

from export import messages, session

_codes = messages.error_codes_pb2


def invalid_argument(message: str) -> session.StatusError:
    return session.StatusError(_codes.INVALID_ARGUMENT, message)


def failed_precondition(message: str) -> session.StatusError:
    return session.StatusError(_codes.FAILED_PRECONDITION, message)


class TooLarge(session.StatusError):
    """A request over a limit: RESOURCE_EXHAUSTED, or 413 over REST.

    `what` is such as `1025 texts`, `flag` the flag of `export.serve` that
    sets the limit.
    """

    def __init__(self, what: str, flag: str, limit: int):
        super().__init__(
            _codes.RESOURCE_EXHAUSTED,
            f"The request holds {what}; the stand-in takes {limit}. Send "
            f"smaller requests, or raise --{flag}.",
        )
