"""`python -m leveller`: the command."""

from leveller.cli import main

main()
