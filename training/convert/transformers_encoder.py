"""Runs a BERT with Hugging Face's `transformers`, in its own process.

PyTorch and TensorFlow in one process may crash it.
"""

import concurrent.futures
import importlib.util
import multiprocessing
import pathlib

import numpy as np


def is_installed() -> bool:
    """Whether PyTorch and `transformers` are installed."""
    return all(map(importlib.util.find_spec, ("torch", "transformers")))


def encode(
    folder: str, batches: list[dict], heads: bool
) -> list[dict[str, np.ndarray]]:
    """Runs the model of a folder in Hugging Face's format.

    Batches and results are as of `BertSource.encode`, with float32 arrays. The
    logits of pre-training's `heads` are large.
    """
    # `transformers` would take a path that it cannot find for a Hub name.
    folder = str(pathlib.Path(folder).resolve())
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        try:
            return pool.submit(_run, folder, batches, heads).result()
        except Exception as error:  # any, of two libraries
            raise ValueError(
                f"`transformers` is installed and cannot run {folder}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _run(folder, batches, heads):
    import torch
    import transformers

    # `missing_keys` below names the weights that the folder lacks, which
    # `transformers` initializes at random and warns of.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Not the `architectures` of config.json: bert-base has BertForMaskedLM
    # there, which leaves out the pooler of its file.
    architecture = "BertForPreTraining" if heads else "BertModel"
    model, info = getattr(transformers, architecture).from_pretrained(
        folder,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    model.eval()
    missing = " ".join(info["missing_keys"])
    results = []
    for batch in batches:
        batch = {name: torch.tensor(x).long() for name, x in batch.items()}
        with torch.no_grad():
            encoded = getattr(model, "bert", model)(
                input_ids=batch["token_ids"],
                token_type_ids=batch["segment_ids"],
                attention_mask=batch["padding_mask"],
            )
            result = {"sequence_output": encoded.last_hidden_state}
            if "pooler" not in missing:
                result["pooled_output"] = encoded.pooler_output
            if heads:
                masked_lm, next_sentence = model.cls(*encoded[:2])
                if "cls.predictions" not in missing:
                    result["masked_lm"] = masked_lm
                if "pooler" not in missing and (
                    "cls.seq_relationship" not in missing
                ):
                    result["next_sentence"] = next_sentence
        results.append({name: x.numpy() for name, x in result.items()})
    return results
