"""`python -m forebay.cli …` is `forebay …`."""

import sys

from forebay.cli.app import main

sys.exit(main())
