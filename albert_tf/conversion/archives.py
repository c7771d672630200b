"""Checks on zip archives from elsewhere."""

from __future__ import annotations

import os
import zipfile


def check_not_compressed(path: str) -> None:
    """Checks that a zip archive is not compressed, as those of Keras and torch never are.

    Raises:
      ValueError: If it is compressed, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from None
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError(
            f"{path} is compressed, as Keras and torch never write it: save the model again"
        )
    declared, held = sum(member.file_size for member in members), os.path.getsize(path)
    if declared > held:
        raise ValueError(
            f"{path} is damaged (its members declare {declared:,} bytes, but it has {held:,}): "
            "copy it again"
        )
