"""albert-serve follows folders of versions: what is new, changed, half copied, broken or gone.

The models are made up, each a file with a number; test_server.py tests how folders are found.
"""

import asyncio
import contextlib
import gc
import inspect
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from albert_tf.serving import predict, versions
from tests.kit.made_up_models import kind, settings_of
from tests.model.test_backends import ROOT
from tests.serving.test_connection import connect
from tests.serving.test_server import asked

pytest.importorskip("starlette")

from albert_tf.serving.rest_models import Metrics, Models  # noqa: E402

# A version's file ends with a dot, unless it is half copied.
FILE = "model.txt"
ASK = "/v1/models/mood:predict"


def load(path, depth=None):
    """Loads a model that answers with its number."""
    number, dot, _ = pathlib.Path(path, FILE).read_text().partition(".")
    if not dot:
        raise ValueError("it ends early")

    def find(inputs):
        if number == "0":
            raise RuntimeError("damaged")
        return [{"score": int(number)} for _ in inputs]

    return predict.Predictor(kind("text"), find)


class Folder:
    """A model's folder, and the server's models, metrics and follower for it."""

    def __init__(self, path, capsys):
        self.path, self._capsys = path, capsys
        self.write(1, "1.")
        self.metrics = Metrics()
        self.models = Models({"mood": {}}, settings_of(), self.metrics)
        self.follower = versions.Follower(self.models, {"mood": str(path)})

    def write(self, version, text):
        (self.path / str(version)).mkdir(parents=True, exist_ok=True)
        (self.path / str(version) / FILE).write_text(text)

    def remove(self, version):
        shutil.rmtree(self.path / str(version))

    def look(self):
        """Looks once; returns the logged events with their versions, and each version's answer."""
        self._capsys.readouterr()
        self.follower.look()
        lines = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        assert all(line["model"] == "mood" and line["time"] for line in lines)
        events = [f"{line['event']} {line['version']}" for line in lines]
        return events, {v: self.answer(v) for v in self.models["mood"]}

    def answer(self, version=None):
        (found,) = self.models.find("mood", version).predictor.outputs([["a"]])
        return found["score"]


@pytest.fixture
def folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(predict, "load_exported", load)
    monkeypatch.setattr(versions, "_SETTLING_SECONDS", 0)
    yield Folder(tmp_path / "mood", capsys)
    gc.unfreeze()


def test_versions_come_change_and_go(folder):
    folder.write(2, "2.")
    assert folder.look() == (["loaded 1", "loaded 2"], {"1": 1, "2": 2})
    assert folder.look() == ([], {"1": 1, "2": 2})
    folder.write(10, "10.")
    folder.write(9, "9.")
    folder.write("new", "11.")
    folder.remove(1)
    assert folder.look() == (["loaded 9", "loaded 10", "removed 1"], {"2": 2, "9": 9, "10": 10})
    assert folder.answer() == 10
    folder.write(10, "110.")
    folder.write(1, "1.")
    assert folder.look()[1] == {"1": 1, "2": 2, "9": 9, "10": 110}
    folder.remove(10)
    assert folder.look()[0] == ["removed 10"] and folder.answer() == 9
    # A version may come back unchanged.
    (folder.path / "9").rename(folder.path / "old")
    assert folder.look()[0] == ["removed 9"]
    (folder.path / "old").rename(folder.path / "9")
    assert folder.look()[0] == ["loaded 9"]


def test_versions_are_loaded_with_the_servers_depth(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        predict, "load_exported", lambda *given: asked.append(given) or load(*given)
    )
    folder.models.settings = settings_of(depth=4)
    folder.look()
    assert asked == [(str(folder.path / "1"), 4)]


@pytest.mark.parametrize("wrong", ["2", "0."], ids=["to load", "to answer"])
def test_a_broken_version_is_refused_once(folder, wrong):
    folder.write(2, wrong)
    assert folder.look() == (["loaded 1", "refused 2"], {"1": 1})
    assert folder.look() == ([], {"1": 1})
    folder.write(2, wrong + " ")
    assert folder.look() == (["refused 2"], {"1": 1})
    # Version 1 is removed too early, and so still answers.
    folder.remove(1)
    assert folder.look() == ([], {"1": 1})
    folder.write(2, "2.")
    assert folder.look() == (["loaded 2", "removed 1"], {"2": 2})
    # A version keeps answering if its replacement is broken.
    folder.write(2, wrong)
    assert folder.look() == (["refused 2"], {"2": 2})


def test_what_was_refused_is_freed(folder, monkeypatch):
    folder.look()
    folder.write(2, "0.")
    loaded = []

    def remembered(path, depth):
        predictor = load(path)
        loaded.append(weakref.ref(predictor))
        return predictor

    monkeypatch.setattr(predict, "load_exported", remembered)
    assert folder.look() == (["refused 2"], {"1": 1})
    assert [each() for each in loaded] == [None]


def test_a_model_without_a_version_does_not_start(folder):
    folder.write(1, "1")
    with pytest.raises(ValueError, match="ends early"):
        folder.follower.look()


def test_what_is_being_copied_waits_for_the_next_look(folder, monkeypatch):
    folder.look()

    monkeypatch.setattr(versions.time, "sleep", lambda _: folder.write(2, "22."))
    folder.write(2, "2.")
    assert folder.look() == ([], {"1": 1})
    monkeypatch.setattr(versions.time, "sleep", lambda _: None)
    assert folder.look() == (["loaded 2"], {"1": 1, "2": 22})
    # So does a version whose files are removed one by one.
    monkeypatch.setattr(versions.time, "sleep", lambda _: folder.remove(2))
    folder.write(2, "2")
    assert folder.look() == ([], {"1": 1, "2": 22})
    assert folder.look() == (["removed 2"], {"1": 1})


def test_an_empty_folder_changes_nothing(folder):
    folder.write(2, "2.")
    folder.look()
    for remove in (lambda: (folder.remove(1), folder.remove(2)), folder.path.rmdir):
        remove()
        assert folder.look() == ([], {"1": 1, "2": 2})
    folder.write(3, "3.")
    assert folder.look() == (["loaded 3", "removed 1", "removed 2"], {"3": 3})


def test_a_single_export_is_read_once(folder):
    paths = {"mood": str(folder.path / "1")}
    follower = versions.Follower(folder.models, paths)
    follower.look()
    folder.write(1, "11.")
    follower.look()
    assert folder.answer() == 1
    # It isn't followed, so that this ends.
    asyncio.run(asyncio.wait_for(follower.follow(0.01), 5))


def test_what_was_taken_out_is_freed_after_its_last_request(folder):
    folder.write(2, "2.")
    folder.look()
    gone = folder.models.find("mood")
    leaving = weakref.ref(gone.predictor)
    shown = {"model": "mood", "version": "2"}
    gc.disable()  # Frozen objects are never collected.
    try:

        async def ask(model):
            return await asyncio.gather(*(model.batcher([["a"]]) for _ in range(3)))

        folder.remove(2)
        assert folder.metrics.registry.get_sample_value("albert_queue", shown) == 0
        assert folder.look()[0] == ["removed 2"]
        assert folder.metrics.registry.get_sample_value("albert_queue", shown) is None
        assert asyncio.run(ask(gone)) == [[{"score": 2}]] * 3
        del gone
        assert leaving() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["poll", "signal"])
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_looks_are_repeated_and_asked_for(folder, how, monkeypatch, capsys):
    looks, look = [], folder.follower.look
    is_seen, went_on = threading.Event(), []

    def failing_once():
        looks.append(1)
        if len(looks) == 1:
            raise PermissionError("not now")
        went_on.append(is_seen.wait(5))
        look()

    monkeypatch.setattr(folder.follower, "look", failing_once)
    folder.models.put(folder.models.ask("mood", "1", load(folder.path / "1")))
    folder.write(2, "2.")

    async def follow():
        asked_for = 0
        following = asyncio.ensure_future(folder.follower.follow(0.01 * (how == "poll")))
        # From now on a signal no longer ends the process.
        assert signal.getsignal(signal.SIGHUP) != signal.SIG_DFL
        await asyncio.sleep(0.1)
        assert bool(looks) == (how == "poll")
        while "2" not in folder.models["mood"]:
            if how == "signal":
                os.kill(os.getpid(), signal.SIGHUP)
                asked_for += 1
            await asyncio.sleep(0.02)
            if len(looks) > 1:
                is_seen.set()
        await asyncio.sleep(0.1)
        assert how == "poll" or len(looks) <= asked_for
        following.cancel()

    asyncio.run(asyncio.wait_for(follow(), 20))
    assert went_on and all(went_on)  # The event loop went on meanwhile.
    error = json.loads(capsys.readouterr().out.splitlines()[0])
    assert error["event"] == "error" and error["traceback"].endswith("PermissionError: not now\n")


# A server without TensorFlow and Keras; a model takes 0.3 s to load, and 2 ms to answer.
SERVER = f"""
import pathlib, sys, time
sys.modules["tensorflow"] = sys.modules["keras"] = None
from albert_tf.cli import serve
from albert_tf.serving import predict, versions
from albert_tf.serving.settings import ServerSettings
from tests.kit.made_up_models import kind

FILE = "{FILE}"

{inspect.getsource(load)}

def load_slowly(path, depth):
    time.sleep(0.3)
    found = load(path)
    answer = found._find
    found._find = lambda inputs: time.sleep(0.002) or answer(inputs)
    return found

predict.load_exported = load_slowly
versions._SETTLING_SECONDS = 0.05
given = dict(model=(sys.argv[1],), port=0, access_log=False, poll_seconds=0.0)
serve.main(ServerSettings.of(**given))
"""


class Clients:
    """Threads that ask all the time, each on one connection.

    Attributes:
      expected: The versions that may answer now.
    """

    def __init__(self, port):
        self.port, self.expected, self.is_over = port, {1}, False
        self.count, self.wrong = 0, []
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]

    def _ask(self):
        connection = connect(self.port)
        while not self.is_over:
            before = self.expected
            try:
                connection.request("POST", ASK, asked("a"))
                answer = connection.getresponse()
                found = answer.status, json.load(answer).get("predictions")
            except Exception as error:
                found = error, None
            right = [(200, [number]) for number in before | self.expected]
            self.count += 1
            if found not in right:
                self.wrong.append((found, right))
        connection.close()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        for thread in self._threads:
            thread.join()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_clients_notice_nothing(tmp_path):
    staged, served = tmp_path / "staged", tmp_path / "mood"
    served.mkdir()

    def write(number, text):
        staged.mkdir()
        (staged / FILE).write_text(text)
        staged.rename(served / str(number))

    write(1, "1.")
    command = [sys.executable, "-c", SERVER, str(served)]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **more) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)

        def event():
            line = json.loads(process.stdout.readline())
            return line["event"], line.get("version")

        def look(*events):
            process.send_signal(signal.SIGHUP)
            assert [event() for _ in events] == [*events]

        assert event() == ("loaded", "1")
        started = json.loads(process.stdout.readline())
        assert (started["event"], started["models"]) == ("start", {"mood": ["1"]})
        port = int(started["address"].rpartition(":")[2])
        assert process.stderr.readline() == f"albert-serve: {started['address']} has mood\n"
        clients = stack.enter_context(Clients(port))
        for number in range(2, 6):
            # While a version is loaded, it or the old one answers; then only the new one does.
            clients.expected = {number - 1, number}
            write(number, f"{number}.")
            look(("loaded", str(number)))
            clients.expected = {number}
            write(number + 100, "0." if number % 2 else "7")
            look(("refused", str(number + 100)))
            shutil.rmtree(served / str(number + 100))
            (served / str(number - 1)).rename(tmp_path / f"old{number}")
            look(("removed", str(number - 1)))
        clients.expected = {5, 4}
        write(4, "4.")
        look(("loaded", "4"))
        (served / "5").rename(tmp_path / "old")
        look(("removed", "5"))
        clients.expected = {4}
        asked_so_far = clients.count
        look()
        while clients.count < asked_so_far + 50:
            time.sleep(0.01)
        clients.__exit__()
        assert clients.wrong == [] and clients.count > 150
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["end"]
