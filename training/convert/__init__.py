"""Command: turns existing encoders into presets."""
