"""Outputs of a BERT by `transformers`.

    python transformers_outputs.py FOLDER INPUTS OUTPUT ARCHITECTURE

A process of its own, because PyTorch beside TensorFlow may crash. INPUTS and
OUTPUT are `.npz` files.
"""

import sys

import numpy as np
import torch
import transformers


def main(folder, inputs, output, architecture):
    model = getattr(transformers, architecture).from_pretrained(folder).eval()
    batch = {
        name: torch.tensor(x).long() for name, x in np.load(inputs).items()
    }
    with torch.no_grad():
        found = model(**batch)
    np.savez(output, **{name: x.numpy() for name, x in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
