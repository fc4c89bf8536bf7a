"""The trainer process: `python -m spotlightd.trainer SETTINGS_FILE PARENT_PID`.

Loading torch takes seconds. A daemon that is killed meanwhile must not leave a trainer behind that
would work beside the next one, so this process ties its life to the daemon's before it loads.

With more than one rank this process is torch.distributed.run, and each rank runs this same module
with the launcher as the parent that its life is tied to.
"""

import logging
import os
import signal
import sys
from pathlib import Path

from spotlightd import logs
from spotlightd.childproc import die_with_parent
from spotlightd.errors import ExitCode, InputError
from spotlightd.trainer.settings import read_settings


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if len(argv) != 3 or not argv[2].isdigit():
        print("usage: python -m spotlightd.trainer SETTINGS_FILE PARENT_PID", file=sys.stderr)
        return ExitCode.USAGE
    die_with_parent(int(argv[2]))
    logs.configure(logging.INFO)
    settings_file = Path(argv[1])
    try:
        ranks = read_settings(settings_file).config.trainer.ranks
    except InputError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return int(error.exit_code)
    if ranks > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        from spotlightd.trainer.launch import launch

        return launch(settings_file, ranks)
    from spotlightd.trainer.main import run

    return run(settings_file)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
