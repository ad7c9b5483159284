"""The sub-commands of `python -m diagnostics`: one file each, with a function of its name."""
