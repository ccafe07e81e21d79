"""`python -m tfunet` is `tfunet`."""

import sys

from tfunet.cli import main

sys.exit(main())
