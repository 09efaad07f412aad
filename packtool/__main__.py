"""``python -m packtool`` is the same as the console script."""

from packtool.cli import main

main()
