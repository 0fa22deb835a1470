"""What a shrunk preset keeps of the model it was made of."""

import dataclasses
import json
import pathlib

_NAME = "origin.json"


@dataclasses.dataclass(frozen=True)
class Origin:
    """The source of a shrunk encoder, and the parts of it that it keeps."""

    source_sha256: str  # `training.engine.preset.preset_sha256`
    layers: tuple[int, ...]  # counted from 0
    channels: tuple[int, ...]

    def states(self, num_layers: int) -> tuple[int, ...]:
        """Which states of the source, of `num_layers`, its states follow.

        State 0 is that of the embeddings, and `i + 1` that after block `i`.
        """
        return (*self.layers, num_layers)

    def write(self, preset: pathlib.Path) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=2)
        (preset / _NAME).write_text(f"{text}\n", encoding="utf-8")


def read_origin(preset: pathlib.Path, source_sha256: str) -> Origin:
    """Reads what `training.shrink` wrote about `init`; checks its source."""
    path = preset / _NAME
    if not path.is_file():
        raise ValueError(
            "`state_weight` needs an `init` that `training.shrink` wrote, "
            "which says which states correspond. "
            f"Received: {str(preset)!r} without {_NAME}"
        )
    origin = Origin(**json.loads(path.read_text(encoding="utf-8")))
    if origin.source_sha256 != source_sha256:
        raise ValueError(
            "`teacher` must be the preset that `init` was shrunk from. "
            f"Received: another one than {str(preset)!r} names"
        )
    return dataclasses.replace(
        origin, layers=tuple(origin.layers), channels=tuple(origin.channels)
    )
