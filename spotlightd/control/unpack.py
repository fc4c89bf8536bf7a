"""Unpacks what the daemon exported: plain file names only, whatever the archive says."""

import re
import zipfile
from io import BytesIO
from pathlib import Path

from spotlightd.atomic import write_file
from spotlightd.errors import VersionSkewError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")


def unpack(packed: bytes, out: Path) -> list[Path]:
    """Write an archive's files into a folder and return their paths.

    Raises VersionSkewError where it is no archive of plain files: nothing is written then.
    """
    try:
        with zipfile.ZipFile(BytesIO(packed)) as archive:
            contents = {info.filename: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise VersionSkewError(f"the daemon sent no archive ({error})") from None
    strange = [name for name in contents if not NAME.fullmatch(name)]
    if strange or not contents:
        raise VersionSkewError(
            f"the daemon's archive holds {strange[0]!r}, which is no plain file name: nothing was "
            f"written"
            if strange
            else "the daemon's archive is empty"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_file(out / name, content)
    return [out / name for name in contents]
