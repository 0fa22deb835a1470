"""Pre-training on masked tokens and next sentences."""
