"""`python -m feddual.cli`."""

from feddual.cli import main

main()
