"""The sub-commands of `python -m diagnostics`: one file each, found by its name; the function in it has the same name."""
