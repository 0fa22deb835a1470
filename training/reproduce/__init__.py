"""Command: reproduces the paper's figures at a feasible size."""
