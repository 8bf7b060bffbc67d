"""`python -m intervalq.cli` is `intervalq`, also where no console script is on the path."""

from intervalq.cli import main

main()
