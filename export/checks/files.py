"""Checks of the files of an export."""

import stat

from export.checks.exported import Exported, Failure
from export.files import card, digests, golden, manifest, warmup

_SIZE_LIMIT = 1.02  # bytes of variables on disk per byte of parameters
# A checkpoint also holds the names of its variables.
_CHECKPOINT_OVERHEAD = 32 * 1024
_FILES = (
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
    golden.FILE,
    warmup.FILE,
    card.FILE,
)
_FOLDERS = {"assets", "assets.extra", "variables"}
# Some versions of TensorFlow write no fingerprint; old exports lack a manifest.
_OPTIONAL = (card.FINGERPRINT, manifest.FILE)
_UNSEALED = "exported before there were manifests; not compared"


def check_manifest(exported: Exported) -> str:
    """Every file is byte for byte what was exported."""
    if not exported.is_sealed:
        return _UNSEALED
    try:
        differing = manifest.differences(exported.folder)
    except OSError as error:
        raise Failure(f"{manifest.FILE} is missing") from error
    if differing:
        raise Failure("; ".join(differing))
    return f"{len(manifest.paths(exported.folder)) - 1} files"


def check_files(exported: Exported) -> str:
    """The files of an export are there, and no others, such as
    `saved_model_config.pb`, which a model server might read."""
    found = manifest.paths(exported.folder)
    missing = [name for name in _FILES if name not in found]
    if missing:
        raise Failure(f"files are missing: {', '.join(missing)}")
    folders = {
        path.relative_to(exported.folder).as_posix()
        for path in exported.folder.rglob("*")
        if path.is_dir()
    }
    others = found.keys() - {*_FILES, *_OPTIONAL} | folders - _FOLDERS
    if others:
        raise Failure(f"an export has no {', '.join(sorted(others))}")
    if irregular := manifest.irregular(exported.folder):
        raise Failure(f"{', '.join(irregular)} must be a plain file or folder")
    return f"{len(found)} files"


def check_permissions(exported: Exported) -> str:
    """Every user may read every file: a model server is another user."""
    for path in (exported.folder, *exported.folder.rglob("*")):
        wanted = 0o005 if path.is_dir() else 0o004
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & wanted != wanted:
            name = path.relative_to(exported.folder.parent)
            raise Failure(f"{name} has mode {mode:03o}: not all may read it")
    return "all may read"


def check_card(exported: Exported) -> str:
    """The card is the exported one, and describes the weights."""
    for name, value in (
        ("dtype", exported.dtype),
        ("parameter_bytes", exported.parameter_bytes),
    ):
        said = exported.fact(name, type(value))
        if said != value:
            raise Failure(
                f"{card.FILE} says {name} {said!r}, the graph {value!r}"
            )
    if not exported.is_sealed:
        return _UNSEALED
    if digests.of_card(exported.card) != exported.golden.card_sha256:
        raise Failure(
            f"{card.FILE} is not the one that {golden.FILE} was written with"
        )
    fingerprint = digests.of_file(exported.folder / card.FINGERPRINT)
    if fingerprint != exported.card.get("fingerprint_sha256"):
        raise Failure(f"{card.FINGERPRINT} is not the exported one")
    return "the exported one"


def check_weights_once(exported: Exported) -> str:
    """The variables on disk are no larger than the model's parameters."""
    parameters = exported.fact("parameter_bytes", int)
    stored = sum(
        path.stat().st_size
        for path in (exported.folder / "variables").glob("variables.data-*")
    )
    if stored > _SIZE_LIMIT * parameters + _CHECKPOINT_OVERHEAD:
        raise Failure(
            f"{stored:,} bytes of variables for {parameters:,} bytes of "
            f"parameters ({stored / parameters:.2f}x)"
        )
    return f"{stored / parameters:.4f}x the parameter bytes"
