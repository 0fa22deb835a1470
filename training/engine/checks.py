"""Checks of values from flags: errors name the flag and the value."""


def check_at_least(least: int, **values: float):
    """Raises a `ValueError` for the first value under `least`."""
    for name, value in values.items():
        if value < least:
            raise ValueError(
                f"`{name}` must be at least {least}. Received: {value}"
            )


def check_positive(**values: float):
    """Raises a `ValueError` for the first value that is not positive."""
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"`{name}` must be positive. Received: {value}")


def check_fraction(**values: float):
    """Raises a `ValueError` for the first value outside of 0 to 1."""
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(
                f"`{name}` must be between 0 and 1. Received: {value}"
            )


def check_length(longest: int, special_tokens: int, **lengths: int):
    """Checks that sequences have room for a token, and positions for them."""
    for name, length in lengths.items():
        if not special_tokens < length <= longest:
            raise ValueError(
                f"`{name}` must be over {special_tokens} (the special tokens) "
                f"and at most max_sequence_length={longest}. "
                f"Received: {length}"
            )


def check_whole_batch(accumulation_steps: int, compared: str):
    """Checks that a loss that compares examples sees the whole batch."""
    if accumulation_steps != 1:
        raise ValueError(
            f"`accumulation_steps` must be 1: {compared} are those of the "
            f"whole batch. Received: {accumulation_steps}"
        )
