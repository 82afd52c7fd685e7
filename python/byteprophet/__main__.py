"""``python -m byteprophet`` is the command ``byteprophet``."""

from __future__ import annotations

from byteprophet.cli.entry import main

if __name__ == "__main__":
    main()
