"""Finds the models to serve, and follows changes of their version folders while they answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import importlib.util
import os
import re
import signal
import time
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert_tf.console import tensorflow_logs
from albert_tf.serving import predict, rest_log
from albert_tf.storage import files

if TYPE_CHECKING:
    from albert_tf.serving.rest_models import Models

# A directory that is still being copied changes within this time.
_SETTLING_SECONDS = 1.0


def find(models: Sequence[str]) -> dict[str, str]:
    """Returns the paths that `model` gives, by name.

    Example:
      >>> find(["exported/sentiment", "mood=models/sentiment/3"])
      {'sentiment': 'exported/sentiment', 'mood': 'models/sentiment/3'}
    """
    found: dict[str, str] = {}
    for given in models:
        # A directory may have "=" in its name as well.
        name, mark, path = given.partition("=")
        if not mark or os.path.dirname(name) or os.path.exists(given):
            name, path = "", given
        # A model that is not named has the name of its folder, not of its version.
        parent, last = os.path.split(os.path.abspath(path))
        name = name or (os.path.basename(parent) if last.isdecimal() else last)
        # Clients resolve names that are only dots as relative parts of a URL.
        if not re.fullmatch(r"\.*[\w-][\w.-]*", name) or name in found:
            raise ValueError(
                f"`model={given}`: {name!r} is another model's name, or not made of letters, "
                "digits, dots, hyphens and underscores, or of dots alone: give NAME=DIR"
            )
        found[name] = path
    return found


def versions(path: str) -> dict[str, str]:
    """Returns the directories of a model's versions by number, the newest last.

    They are subfolders named by their numbers; a path without any is itself the only version.
    """
    last = os.path.basename(os.path.abspath(path))
    names = os.listdir(path) if os.path.isdir(path) and not last.isdecimal() else []
    numbers = sorted(filter(str.isdecimal, names), key=int)
    only = {last if last.isdecimal() else "1": path}
    return {number: os.path.join(path, number) for number in numbers} or only


def load(path: str, depth: int | None) -> predict.Predictor:
    """Loads an export; only a SavedModel needs TensorFlow, which takes seconds to import."""
    if files.is_file(os.path.join(path, "saved_model.pb")):
        if not importlib.util.find_spec("tensorflow"):
            raise ValueError(f"{path} needs TensorFlow: export to ONNX, or install it")
        tensorflow_logs.import_tensorflow()
    return predict.load_exported(path, depth)


class Follower:
    """Keeps a server's models in step with their folders.

    Args:
      models: The server's, still without versions; the first call of `look` loads them.
      paths: Their paths by name.
    """

    def __init__(self, models: Models, paths: Mapping[str, str]) -> None:
        self._models, self._paths = models, paths
        # One thread for all looks, since each would keep memory of its own.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "versions")
        # The files of each model's versions, as they were when these were loaded or refused.
        self._tried: dict[str, dict[str, list[tuple[str, int, int]]]] = {name: {} for name in paths}

    def follow(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Returns a coroutine that looks every `seconds` (0: never), and at once after each SIGHUP.

        The signal, which otherwise ends the process, is handled from this call on.
        """
        has_folder = any(path not in versions(path).values() for path in self._paths.values())
        is_asked = asyncio.Event()
        if has_folder and hasattr(signal, "SIGHUP"):  # Windows has none.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, is_asked.set)
        return self._look_again(seconds, is_asked, has_folder)

    async def _look_again(self, seconds: float, is_asked: asyncio.Event, has_folder: bool) -> None:
        loop = asyncio.get_running_loop()
        while has_folder:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(is_asked.wait(), seconds or None)
            is_asked.clear()
            try:
                await loop.run_in_executor(self._thread, self.look)
            except Exception:  # Perhaps a folder may not be read: the next look may succeed.
                rest_log.write("error", traceback=traceback.format_exc())

    def look(self) -> None:
        """Loads versions that are new or have changed, and removes those that are gone.

        Raises the error of a model if none of its versions can be loaded.
        """
        depth = self._models.settings.depth
        for name, path in self._paths.items():
            places, is_start, failure = versions(path), not self._models[name], None
            # A single export is read once. A folder that has become empty changes nothing.
            if not is_start and path in places.values():
                continue
            # A version that is gone and comes back is a new one.
            tried = {v: files for v, files in self._tried[name].items() if v in places}
            self._tried[name] = tried
            found = {version: _files(place) for version, place in places.items()}
            changed = [version for version in found if found[version] != tried.get(version)]
            if changed and not is_start:
                time.sleep(_SETTLING_SECONDS)
            for version in changed:
                about = {"model": name, "version": version}
                try:
                    model = self._models.ask(name, version, load(places[version], depth))
                except Exception as error:  # A runtime raises many types for a damaged file.
                    model, failure = None, error
                # Files that change meanwhile are being copied, or removed: wait for the next look.
                if not is_start and _files(places[version]) != found[version]:
                    continue
                tried[version] = found[version]
                if model is None:
                    rest_log.write("refused", **about, message=str(failure))
                    continue
                self._models.put(model)
                rest_log.write("loaded", **about)
            if failure and not self._models[name]:
                raise failure
            # The traceback refers to the refused model, which would be frozen with the others.
            failure = None
            gone = self._models.keep(name, places)
            for version in gone:
                rest_log.write("removed", model=name, version=version)
            if changed or gone:
                _tidy_memory()


def _tidy_memory() -> None:
    # Models live long: freeze them, since a full garbage collection would pause clients for 0.2 s.
    gc.collect()
    gc.freeze()
    # glibc keeps freed memory: after ten versions of ALBERT-base, 440 MB instead of 190.
    with contextlib.suppress(AttributeError, OSError, TypeError):  # Other systems' libraries.
        ctypes.CDLL(None).malloc_trim(0)


def _files(place: str) -> list[tuple[str, int, int]]:
    """Returns names, sizes and times of a version's files, which tell whether they have changed."""
    with contextlib.suppress(OSError):  # Some are just being removed.
        paths = sorted(files.walk(place))
        return [(path, (s := os.stat(path)).st_size, s.st_mtime_ns) for path in paths]
    return []
