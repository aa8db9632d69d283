"""`python -m asya_runtime`, the same as the command `asya-runtime`."""

import sys

from .runtime import main

sys.exit(main())
