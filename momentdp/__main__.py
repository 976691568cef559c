"""`python -m momentdp`."""

import sys

from momentdp.cli import main

if __name__ == "__main__":
    sys.exit(main())
