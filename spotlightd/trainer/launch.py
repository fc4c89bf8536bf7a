"""Starts one process a rank under torch.distributed.run and waits for them."""

import os
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from spotlightd.errors import ExitCode


def launch(settings_file: Path, ranks: int) -> int:
    """Run the trainer on `ranks` processes of this node; return the exit code of what failed.

    When one rank ends badly, torch.distributed.run ends the others. It starts none again: the
    daemon does, from the newest version.
    """
    arguments = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "0"]
    # Ctrl-C reaches the whole foreground group, and only the daemon decides what it means.
    arguments += ["--signals-to-handle", "SIGTERM"]
    module = ["-m", "spotlightd.trainer", str(settings_file), str(os.getpid())]
    try:
        torchrun.main([*arguments, *module])
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        # Ranks that lose their peer fail, too, and may be seen first.
        explained = codes & {ExitCode.INPUT, ExitCode.TRY_AGAIN}
        return min(explained or {error.get_first_failure()[1].exitcode})
    except SignalException:
        return ExitCode.OK
    return ExitCode.OK
