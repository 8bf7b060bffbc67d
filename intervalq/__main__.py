"""`python -m intervalq` is `intervalq`, even if no console script is on the path."""

from intervalq.cli import main

main()
