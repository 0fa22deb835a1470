"""Training of an embedder to give what a larger one gives."""
