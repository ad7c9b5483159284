"""Probes that run during training: one file each, found by its name."""
