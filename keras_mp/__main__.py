"""`python -m keras_mp COMMAND`; `--help` lists the commands."""

import sys

from keras_mp_cli import main

if __name__ == "__main__":
    sys.exit(main())
