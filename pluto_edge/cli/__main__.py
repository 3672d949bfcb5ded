"""`python -m pluto_edge.cli` is `pluto`."""

import sys

from pluto_edge.cli import main

sys.exit(main())
