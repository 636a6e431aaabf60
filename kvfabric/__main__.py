"""``python -m kvfabric``: the same as the command ``kvfabric``."""

import sys

from kvfabric.cli import main

if __name__ == "__main__":
    sys.exit(main())
