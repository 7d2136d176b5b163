"""`python -m horarium` is the command `horarium`."""

from horarium.cli import main

main()
