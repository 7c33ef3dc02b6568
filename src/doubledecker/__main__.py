"""`python -m doubledecker` is the command `doubledecker`."""

from doubledecker.cli import main

main()
