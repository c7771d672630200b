import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.storage import checkpoint
from tests.kit import goldens

DATA, INDEX, META = ".data-00000-of-00001", ".index", ".meta"


class Killed(Exception):  # Stands for a SIGKILL.
    pass


def values(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "b/kernel": rng.normal(size=(5, 7)).astype("float32"),
        "a": rng.normal(size=11),
        "half": rng.normal(size=3).astype("float16"),
        "step": np.int64(seed),
        "odd": np.array([np.nan, np.inf, -0.0, 1e-45], "float32"),
    }


def check(prefix: str, expected: dict[str, np.ndarray]) -> None:
    actual = checkpoint.read(prefix)
    assert set(actual) == set(expected)
    for name, value in expected.items():
        value = np.asarray(value)
        assert actual[name].dtype == value.dtype
        assert actual[name].tobytes() == value.tobytes(), name


def save(directory, step: int, keep_max: int = 5) -> str:
    return checkpoint.save(str(directory), step, values(step), keep_max)


def names(prefixes) -> list[str]:
    return [os.path.basename(prefix) for prefix in prefixes]


def kill_at(monkeypatch, call: int, *functions: str) -> None:
    """Makes call number `call` to any of these functions of tf.io.gfile or os raise Killed."""
    left = [call]
    for name in functions:
        module = os if name == "replace" else tf.io.gfile
        real = getattr(module, name)

        def counted(*args, real=real, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)


def test_what_is_saved_is_read_to_the_bit(tmp_path):
    prefix = save(tmp_path, 13)
    assert prefix == str(tmp_path / "model.ckpt-13")
    check(prefix, values(13))
    reader = tf.train.load_checkpoint(prefix)
    assert set(reader.get_variable_to_shape_map()) == set(values(13))


STEPS = [2, 3, 5, 7, 11]


@pytest.mark.parametrize("keep_max, kept", [(1, [11]), (2, [7, 11]), (5, STEPS), (0, STEPS)])
def test_the_oldest_are_deleted(tmp_path, keep_max, kept):
    for step in STEPS:
        save(tmp_path, step, keep_max)
    expected = [f"model.ckpt-{step}" for step in kept]
    assert names(checkpoint.listed(str(tmp_path))) == expected
    files = {name + ending for name in expected for ending in (DATA, INDEX, META)}
    assert set(os.listdir(tmp_path)) == {"checkpoint", *files}
    for step in kept:
        check(str(tmp_path / f"model.ckpt-{step}"), values(step))


def test_the_newest_is_the_one_saved_last(tmp_path):
    assert checkpoint.latest(str(tmp_path)) is None
    for step in (9, 10, 4):
        prefix = save(tmp_path, step)
        assert checkpoint.latest(str(tmp_path)) == prefix
    assert names(checkpoint.listed(str(tmp_path))) == [f"model.ckpt-{s}" for s in (9, 10, 4)]
    save(tmp_path, 10)
    assert names(checkpoint.listed(str(tmp_path))) == [f"model.ckpt-{s}" for s in (9, 4, 10)]


@pytest.mark.parametrize("directory", ["out", "out/", "./out", "out/deep", "."])
def test_a_relative_directory(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    os.makedirs(directory, exist_ok=True)
    for step in (2, 3, 5):
        checkpoint.save(directory, step, values(step), keep_max=2)
    assert names(checkpoint.listed(directory)) == ["model.ckpt-3", "model.ckpt-5"]
    check(directory, values(5))
    assert not os.path.exists(os.path.join(directory, "model.ckpt-2" + INDEX))


def test_a_half_written_checkpoint_is_not_there(tmp_path):
    """A process that is killed while it writes leaves such files behind."""
    prefix = save(tmp_path, 3)
    (tmp_path / f"model.ckpt-5{DATA}.tempstate123").write_bytes(b"part")
    (tmp_path / f"model.ckpt-7{DATA}").write_bytes(b"whole")
    (tmp_path / "model.ckpt-best.index.tmp").write_bytes(b"part")
    assert checkpoint.listed(str(tmp_path)) == [prefix]
    assert checkpoint.latest(str(tmp_path)) == prefix
    assert checkpoint.best(str(tmp_path)) is None
    assert checkpoint.resolve(str(tmp_path)) == prefix
    with pytest.raises(FileNotFoundError, match=r"model\.ckpt-7"):
        checkpoint.read(str(tmp_path / "model.ckpt-7"))
    check(save(tmp_path, 7), values(7))
    assert names(checkpoint.listed(str(tmp_path))) == ["model.ckpt-3", "model.ckpt-7"]


@pytest.mark.parametrize("content", [b"", b"model", b"\xff\x00", None, "pipe"])
def test_a_list_that_is_none_is_not_taken_for_a_fresh_start(tmp_path, content):
    """None stands for a directory, in place of a file without read permission."""
    save(tmp_path, 3)
    (tmp_path / "checkpoint").unlink()
    if content == "pipe":
        os.mkfifo(tmp_path / "checkpoint")
    elif content is None:
        (tmp_path / "checkpoint").mkdir()
    else:
        (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(ValueError, match=r"/checkpoint can't be read as a list .*\(.*\): copy"):
        checkpoint.latest(str(tmp_path))


@pytest.mark.parametrize("call", range(1, 6))
def test_a_kill_while_saving_leaves_only_whole_checkpoints(tmp_path, monkeypatch, call):
    for step in (2, 3):
        save(tmp_path, step, keep_max=2)
    with monkeypatch.context() as patch:
        kill_at(patch, call, "replace", "remove")
        with pytest.raises(Killed):
            save(tmp_path, 5, keep_max=2)
    listed = checkpoint.listed(str(tmp_path))
    assert "model.ckpt-3" in names(listed)
    for prefix in listed:
        check(prefix, values(int(prefix.rpartition("-")[2])))
    save(tmp_path, 5, keep_max=2)
    assert names(checkpoint.listed(str(tmp_path))) == ["model.ckpt-3", "model.ckpt-5"]


def test_a_checkpoint_is_on_the_disk_before_it_is_listed(tmp_path, monkeypatch):
    flushed = []

    def fsync(number):
        flushed.append(os.readlink(f"/proc/self/fd/{number}"))
        assert not (tmp_path / "checkpoint").exists()

    monkeypatch.setattr(os, "fsync", fsync)
    prefix = checkpoint.save(str(tmp_path), 3, {"a": np.float32(1)}, 1)
    assert flushed == [f"{prefix}.data-00000-of-00001", f"{prefix}.index"]


def test_what_a_killed_writer_left_is_removed(tmp_path, caplog):
    """The names are TensorFlow's own, as it gave them to files of a process that was killed."""
    prefix = save(tmp_path, 3)
    left = [f"model.ckpt-5{end}.tempstate17{i}" for i, end in enumerate((DATA, INDEX))]
    others = ["other.ckpt-5.index.tempstate1", "model.ckpt-1.index", "model.ckpt-best.index"]
    for name in (*left, *others):
        (tmp_path / name).touch()
    # Killed before it was listed.
    left.append("model.ckpt-7.index")
    checkpoint.write(str(tmp_path / "model.ckpt-7"), values(7))
    checkpoint.remove_unfinished(str(tmp_path))
    # A user may have set the list back.
    assert "removing model.ckpt-7, which the file `checkpoint` does not list: the" in caplog.text
    assert not any((tmp_path / name).exists() for name in left)
    assert all((tmp_path / name).exists() for name in others)
    check(prefix, values(3))


def test_a_listed_checkpoint_whose_files_are_gone_is_not_there(tmp_path):
    assert checkpoint.lost(str(tmp_path)) == []
    checkpoint.claim(str(tmp_path))
    assert checkpoint.lost(str(tmp_path)) == []
    prefixes = [save(tmp_path, step) for step in (3, 5)]
    os.remove(prefixes[1] + INDEX)
    assert checkpoint.latest(str(tmp_path)) == prefixes[0]
    assert checkpoint.lost(str(tmp_path)) == []
    os.remove(prefixes[0] + INDEX)
    assert checkpoint.lost(str(tmp_path)) == names(prefixes)


def test_which_checkpoints_no_list_names(tmp_path):
    """In a directory that a run has claimed, its own checkpoints are not among them."""
    assert checkpoint.unlisted(str(tmp_path / "none")) == []
    checkpoint.claim(str(tmp_path))
    checkpoint.write(str(tmp_path / "model.ckpt-4"), values(4))
    assert checkpoint.latest(str(tmp_path)) is None
    assert tf.train.latest_checkpoint(str(tmp_path)) is None
    assert checkpoint.unlisted(str(tmp_path)) == []
    checkpoint.write(str(tmp_path / "model.ckpt-best"), values(2))
    (tmp_path / "half.data-00001-of-00002").touch()
    assert names(checkpoint.unlisted(str(tmp_path))) == ["half", "model.ckpt-best"]
    save(tmp_path, 8)
    assert names(checkpoint.unlisted(str(tmp_path))) == ["half", "model.ckpt-4", "model.ckpt-best"]
    os.remove(tmp_path / "checkpoint")
    assert "model.ckpt-8" in names(checkpoint.unlisted(str(tmp_path)))


def test_best_is_a_copy(tmp_path):
    assert checkpoint.best(str(tmp_path)) is None
    for step in (3, 5):
        prefix = save(tmp_path, step, keep_max=1)
        best = str(tmp_path / "model.ckpt-best")
        copies = checkpoint.copy_to_best(prefix)
        assert copies == {prefix + end: best + end for end in (META, DATA, INDEX)}
        assert all(map(os.path.exists, copies.values()))
        assert checkpoint.best(str(tmp_path)) == best
        check(best, values(step))
    save(tmp_path, 7, keep_max=1)
    check(best, values(5))
    assert names(checkpoint.listed(str(tmp_path))) == ["model.ckpt-7"]
    assert not list(tmp_path.glob("*.tmp"))
    # A directory without a list resolves to its best checkpoint.
    os.remove(tmp_path / "checkpoint")
    assert checkpoint.resolve(str(tmp_path)) == best
    newest = save(tmp_path, 8)
    assert checkpoint.resolve(str(tmp_path)) == newest
    check(str(tmp_path), values(8))


@pytest.mark.parametrize("call", range(1, 8))
def test_a_kill_while_copying_leaves_no_mixture(tmp_path, monkeypatch, call):
    checkpoint.copy_to_best(save(tmp_path, 3))
    prefix = save(tmp_path, 5)
    with monkeypatch.context() as patch:
        kill_at(patch, call, "copy", "remove", "rename")
        with pytest.raises(Killed):
            checkpoint.copy_to_best(prefix)
    best = checkpoint.best(str(tmp_path))
    if call <= 4:  # Nothing has been touched yet.
        check(best, values(3))
    else:
        assert best is None
    checkpoint.copy_to_best(prefix)
    check(str(tmp_path / "model.ckpt-best"), values(5))


BEST = goldens.FOLDER / "base" / "model.ckpt-best"


@pytest.mark.parametrize("kind", [str, pathlib.Path])
@pytest.mark.parametrize("form", [BEST.parent, *(f"{BEST}{end}" for end in ("", INDEX, DATA))])
def test_forms_of_a_path(form, kind):
    assert checkpoint.resolve(kind(form)) == str(BEST)
    assert len(checkpoint.read(kind(form))) == 33


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("model.ckpt-8", "no checkpoint .*model.ckpt-8: expected .*ckpt-8.index"),
        ("nowhere/model.ckpt-best", "no checkpoint .*nowhere"),
        ("", "contains no checkpoint: expected a file named checkpoint .* or"),
    ],
)
def test_no_checkpoint(path, message, tmp_path):
    with pytest.raises(FileNotFoundError, match=message):
        checkpoint.read(str(tmp_path / path))
