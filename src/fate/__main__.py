"""``python -m fate`` is the command ``fate``."""

from fate.cli.main import main

main()
