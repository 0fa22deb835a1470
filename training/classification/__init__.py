"""Fine-tuning to classify texts and pairs of texts."""
