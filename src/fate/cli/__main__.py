"""``python -m fate.cli``."""

from fate.cli.main import main

main()
