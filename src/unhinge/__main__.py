"""`python -m unhinge` is the command `unhinge`."""

from unhinge.cli import main

main()
