"""The paper's figures, reproduced at a size that fits."""
