"""Runs a BERT with Hugging Face's `transformers`, in its own process.

PyTorch and TensorFlow in one process may crash it.
"""

import concurrent.futures
import importlib.util
import multiprocessing
import pathlib

import numpy as np

_INPUTS = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "padding_mask": "attention_mask",
}


def is_installed() -> bool:
    """Whether PyTorch and `transformers` are installed."""
    return all(
        importlib.util.find_spec(name) for name in ("torch", "transformers")
    )


def encode(
    folder: str, batches: list[dict], heads: bool
) -> list[dict[str, np.ndarray]]:
    """Runs the model of a folder in Hugging Face's format.

    Batches and results are as of `BertSource.encode`, with float32 arrays. The
    logits of pre-training's `heads` are large. A `RuntimeError` says why
    `transformers` failed.
    """
    # Not the `architectures` of config.json: bert-base has BertForMaskedLM
    # there, which leaves out the pooler of its file.
    architecture = "BertForPreTraining" if heads else "BertModel"
    # `transformers` would take a path that it cannot find for a Hub name.
    folder = str(pathlib.Path(folder).resolve())
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        try:
            return pool.submit(_run, folder, architecture, batches).result()
        except Exception as error:  # any, of two libraries
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _run(folder, architecture, batches):
    import torch
    import transformers

    # `missing_keys` below names the weights that the folder lacks, which
    # `transformers` initializes at random and warns of.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, info = getattr(transformers, architecture).from_pretrained(
        folder,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    model.eval()
    untrained = {
        name
        for part, names in {
            "pooler": ("pooled_output", "next_sentence"),
            "cls.seq_relationship": ("next_sentence",),
            "cls.predictions": ("masked_lm",),
        }.items()
        if any(part in key for key in info["missing_keys"])
        for name in names
    }
    results = []
    for batch in batches:
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
        results.append(
            {
                name: x.numpy()
                for name, x in result.items()
                if name not in untrained
            }
        )
    return results
