"""Model folders of the Hugging Face Hub, downloaded by name."""

import pathlib
import re

_PREFIX = "hf://"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")

# Pickles are left out: reading one may run any code.
_FILES = ["*.json", "*.txt", "*.safetensors"]


def is_hub_name(source):
    """Whether `source` names a repository, `owner/name`, and not a path.

    `owner/name` is a path if the folder `owner` exists here; with `hf://`
    before it, it never is.
    """
    source = str(source)
    name = source.removeprefix(_PREFIX)
    if _NAME.fullmatch(name) is None:
        return False
    path = pathlib.Path(name)
    return source != name or not (path.exists() or path.parent.exists())


def local_folder(source):
    """Returns the folder `source`, downloaded if it names a repository."""
    path = pathlib.Path(source)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"`folder` must be a folder. Received a file: {path}")
    if not is_hub_name(source):
        raise FileNotFoundError(
            "`folder` must be a folder in Hugging Face's format, or the name "
            "of a repository of the Hugging Face Hub such as "
            "sentence-transformers/all-MiniLM-L6-v2 (with hf:// before it if "
            f"a folder here has that name). Received: {str(source)!r}"
        )
    import huggingface_hub

    name = str(source).removeprefix(_PREFIX)
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=_FILES)
        )
    except Exception as error:  # network, HTTP and its own errors
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"{name} is no folder here, and cannot be downloaded from the "
            f"Hugging Face Hub ({type(error).__name__}: {reason}). On a "
            "machine that can, call "
            f"huggingface_hub.snapshot_download({name!r}) and pass the "
            "folder that it returns"
        ) from error
