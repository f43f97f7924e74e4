"""The front door for developers: ``python tools/dev.py --help``.

Needs only Python. This file has no function and no new syntax, so that any Python, however old,
reads it and reports that it is too old.
"""

import sys

if tuple(sys.version_info[:2]) < (3, 11):
    sys.exit(  # plain `format`: an old Python must be able to read this
        "error: Python 3.11 or newer is needed, {} is Python {}.{}."
        " Run this file with a newer one, for example `python3.11 tools/dev.py`.".format(
            sys.executable, sys.version_info[0], sys.version_info[1]
        )
    )

if __name__ == "__main__":
    sys.path[0] = (
        __import__("pathlib").Path(__file__).resolve().parent.parent.as_posix()
    )  # makes `tools` a package
    from tools.front_door import main
    from tools.running import end_on_sigterm

    end_on_sigterm()
    sys.exit(main(sys.argv[1:]))
