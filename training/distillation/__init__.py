"""Distillation of an embedder into a smaller one."""
