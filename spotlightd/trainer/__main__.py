"""The trainer process: `python -m spotlightd.trainer SETTINGS_FILE DAEMON_PID`.

Loading torch takes seconds. A daemon that is killed meanwhile must not leave a trainer behind that
would work beside the next one, so this process ties its life to the daemon's before it loads.
"""

import logging
import signal
import sys
from pathlib import Path

from spotlightd import logs
from spotlightd.childproc import die_with_parent
from spotlightd.errors import ExitCode


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if len(argv) != 3 or not argv[2].isdigit():
        print("usage: python -m spotlightd.trainer SETTINGS_FILE DAEMON_PID", file=sys.stderr)
        return ExitCode.USAGE
    die_with_parent(int(argv[2]))
    logs.configure(logging.INFO)
    from spotlightd.trainer.main import run

    return run(Path(argv[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
