"""``python -m kvfabric``: the same as the command ``kvfabric``."""

import sys

if __name__ == "__main__":
    try:
        from kvfabric.cli import main

        code = main()
    except KeyboardInterrupt:  # while it was being loaded
        code = 130
    sys.exit(code)
