"""What every run shares: the loop, checkpoints, records and strategies."""
