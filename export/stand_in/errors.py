"""The errors that several parts of the stand-in answer with."""

from export import messages, session

_codes = messages.error_codes_pb2


def invalid_argument(message):
    """Returns the error of a request that is wrong in itself."""
    return session.StatusError(_codes.INVALID_ARGUMENT, message)


def failed_precondition(message):
    """Returns the error of a request that is wrong in the server's state."""
    return session.StatusError(_codes.FAILED_PRECONDITION, message)


def servable_not_found(name, number=None):
    """Returns the error of a request to a model that cannot be asked.

    Args:
        name: str, the model's name.
        number: int, the version asked for; None for the newest one.
    """
    wanted = f"Latest({name})"
    if number is not None:
        wanted = f"Specific({name}, {number})"
    return session.StatusError(
        _codes.NOT_FOUND, f"Servable not found for request: {wanted}"
    )


class TooLarge(session.StatusError):
    """A request beyond the stand-in's limits: RESOURCE_EXHAUSTED, REST 413.

    Args:
        what: str, such as `1025 texts`.
        flag: str, the flag of `export.serve` that limits it.
        limit: int.
    """

    def __init__(self, what, flag, limit):
        super().__init__(
            _codes.RESOURCE_EXHAUSTED,
            f"The request holds {what}; the stand-in takes {limit}. Send "
            f"smaller requests, or raise --{flag}.",
        )
