"""What `training.evaluate` and `training.embedding_report` compute."""
