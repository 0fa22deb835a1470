"""Text to a trained preset folder: data, the training loop, its verbs."""
