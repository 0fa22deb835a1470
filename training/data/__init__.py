"""Data of the training tasks, one file per kind."""
