"""Runs a BERT by Hugging Face's `transformers`, in a process of its own.

    python -m training.convert.transformers_encoder FOLDER INPUTS OUTPUTS

PyTorch and TensorFlow in one process may crash it. INPUTS is an `.npz` file
with batches of inputs, `0/token_ids`, `0/segment_ids`, `0/padding_mask`,
`1/token_ids` and so on; OUTPUTS becomes one with `0/sequence_output`,
`0/pooled_output` and, where the model has them, `0/masked_lm` and
`0/next_sentence`.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

_INPUTS = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "padding_mask": "attention_mask",
}


def is_installed() -> bool:
    """Whether PyTorch and `transformers` are there to be imported."""
    return all(
        importlib.util.find_spec(name) for name in ("torch", "transformers")
    )


def encode(folder: str, batches: list[dict]) -> list[dict]:
    """Runs the model of a folder in another process.

    Args:
        folder: In Hugging Face's format.
        batches: Dictionaries of int arrays `[B, T]`, as a `BertSource`'s
            `encode` takes them.

    Returns:
        What the model gives of each, dictionaries of float32 arrays as that
        `encode` returns them.

    Raises:
        RuntimeError: The process failed; says why.
    """
    with tempfile.TemporaryDirectory() as temporary:
        inputs, outputs = (
            pathlib.Path(temporary, name) for name in ("in.npz", "out.npz")
        )
        np.savez(inputs, **_numbered(batches))
        process = subprocess.run(
            [sys.executable, "-m", __spec__.name, folder, inputs, outputs],
            cwd=pathlib.Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
        if process.returncode:
            last_line = process.stderr.strip().rpartition("\n")[2]
            raise RuntimeError(f"exit status {process.returncode}: {last_line}")
        return _batches(outputs)


def _numbered(batches):
    return {
        f"{i}/{name}": array
        for i, batch in enumerate(batches)
        for name, array in batch.items()
    }


def _batches(path):
    batches = {}
    with np.load(path) as arrays:
        for key in arrays:
            number, name = key.split("/")
            batches.setdefault(int(number), {})[name] = arrays[key]
    return [batches[i] for i in sorted(batches)]


def _run(folder, inputs, outputs):
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    has_heads = config.architectures[0] in (
        "BertForPreTraining",
        "BertForMaskedLM",
    )
    # Of weights that the file has not, this says so, and makes some.
    transformers.logging.set_verbosity_error()
    cls = (
        getattr(transformers, config.architectures[0])
        if has_heads
        else transformers.BertModel
    )
    model = cls.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for batch in _batches(inputs):
        batch = {
            theirs: torch.tensor(batch[ours]).long()
            for ours, theirs in _INPUTS.items()
        }
        with torch.no_grad():
            encoded = getattr(model, "bert", model)(**batch)
            result = {"sequence_output": encoded.last_hidden_state}
            if encoded.pooler_output is not None:
                result["pooled_output"] = encoded.pooler_output
            if has_heads:
                logits = list(model(**batch).values())
                result |= zip(("masked_lm", "next_sentence"), logits)
        found.append({name: x.numpy() for name, x in result.items()})
    np.savez(outputs, **_numbered(found))


if __name__ == "__main__":
    _run(*sys.argv[1:])
