"""`python -m leash.cli` is `leash`."""

from leash.cli.main import main

main()
