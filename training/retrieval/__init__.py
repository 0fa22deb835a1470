"""Fine-tuning for retrieval, and its evaluation."""
