"""Fine-tuning to find the answers to questions in texts."""
