"""Runs a BERT by Hugging Face's `transformers`, in a process of its own.

    python -m training.convert.transformers_encoder FOLDER CLASS INPUTS OUTPUTS

PyTorch and TensorFlow in one process may crash it. CLASS is `BertModel` or
`BertForPreTraining`. INPUTS is an `.npz` file with batches of inputs,
`0/token_ids`, `0/segment_ids`, `0/padding_mask`, `1/token_ids` and so on;
OUTPUTS becomes one with `0/sequence_output` and, where the folder has their
weights, `0/pooled_output` and those of the heads, `0/masked_lm` and
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


def encode(folder: str, batches: list[dict], heads: bool) -> list[dict]:
    """Runs the model of a folder in another process.

    Args:
        folder: In Hugging Face's format.
        batches: Dictionaries of int arrays `[B, T]`, as a `BertSource`'s
            `encode` takes them.
        heads: Whether to run the heads of pre-training, too; their logits
            are large.

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
        # Not by what `architectures` in config.json says: that of bert-base
        # is BertForMaskedLM, which leaves out the pooler its file has.
        cls = "BertForPreTraining" if heads else "BertModel"
        # Absolute, as the process runs in another folder, and `transformers`
        # take what is not there for a name on the hub.
        arguments = [pathlib.Path(folder).resolve(), cls, inputs, outputs]
        process = subprocess.run(
            [sys.executable, "-m", __spec__.name, *arguments],
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


def _run(folder, cls, inputs, outputs):
    import torch
    import transformers

    # Of weights that the folder has not, this says so, and makes some.
    transformers.logging.set_verbosity_error()
    model, info = getattr(transformers, cls).from_pretrained(
        folder,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    model.eval()
    made = {
        name
        for part, names in {
            "pooler": ("pooled_output", "next_sentence"),
            "cls.seq_relationship": ("next_sentence",),
            "cls.predictions": ("masked_lm",),
        }.items()
        if any(part in key for key in info["missing_keys"])
        for name in names
    }
    found = []
    for batch in _batches(inputs):
        batch = {
            theirs: torch.tensor(batch[ours]).long()
            for ours, theirs in _INPUTS.items()
        }
        with torch.no_grad():
            encoded = getattr(model, "bert", model)(**batch)
            result = {
                "sequence_output": encoded.last_hidden_state,
                "pooled_output": encoded.pooler_output,
            }
            if hasattr(model, "cls"):
                logits = model.cls(*encoded[:2])
                result |= zip(("masked_lm", "next_sentence"), logits)
        found.append(
            {name: x.numpy() for name, x in result.items() if name not in made}
        )
    np.savez(outputs, **_numbered(found))


if __name__ == "__main__":
    _run(*sys.argv[1:])
