"""In place of `sky`: managed jobs whose VMs are processes of this machine, each with a new home.

A controller per job starts its VM, starts another when the VM vanishes, and leaves what ended by
itself alone. All state is below $FAKE_SKY; every call is kept in $FAKE_SKY/calls.jsonl.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ["FAKE_SKY"])


def main(argv: list[str]) -> None:
    with (ROOT / "calls.jsonl").open("a") as file:
        file.write(json.dumps(argv) + "\n")
    match argv[:2]:
        case ["jobs", "launch"]:
            launch(argv)
        case ["jobs", "queue"]:
            print("Fetching managed job statuses...")
            print(json.dumps([json.loads(path.read_text()) for path in ROOT.glob("*.job")]))
        case ["jobs", "cancel"]:
            job = json.loads((ROOT / f"{argv[argv.index('--name') + 1]}.job").read_text())
            os.killpg(job["pid"], signal.SIGTERM)
        case ["controller", _]:
            control(argv[1])
        case _:
            sys.exit(f"fake sky: unknown command {argv}")


def launch(argv: list[str]) -> None:
    name, path = argv[argv.index("--name") + 1], argv[-1]
    (ROOT / f"{name}.task").write_text(Path(path).read_text())
    secret = argv[argv.index("--secret") + 1]
    assert "=" not in secret and os.environ[secret], "a secret goes by its name"
    with (ROOT / f"{name}.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, __file__, "controller", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def control(name: str) -> None:
    task = json.loads((ROOT / f"{name}.task").read_text())
    _, region, zone = task["resources"]["any_of"][-1]["infra"].split("/")
    for number in range(100):
        home = ROOT / name / str(number)
        home.mkdir(parents=True)
        # What `setup` would have installed.
        (home / "spotlight").mkdir()
        (home / "spotlight/bin").symlink_to(Path(sys.executable).parent)
        place = json.dumps({"cloud": "AWS", "region": region, "zone": zone})
        environ = {"HOME": str(home), "SKYPILOT_CLUSTER_INFO": place}
        vm = subprocess.Popen(["bash", "-c", task["run"]], env=os.environ | environ)
        job = {"job_name": name, "status": "RUNNING", "pid": os.getpid(), "vm": vm.pid}
        (ROOT / f"{name}.new").write_text(json.dumps(job))
        (ROOT / f"{name}.new").rename(ROOT / f"{name}.job")
        code = vm.wait()
        if (
            code != -signal.SIGKILL
            and code not in task["resources"]["job_recovery"]["recover_on_exit_codes"]
        ):
            return


main(sys.argv[1:])
