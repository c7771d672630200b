"""A wheel in an empty environment, far from the clone: its commands start, train, export, predict.

Its dependencies, and nothing else, are linked from the environment that the tests run in: nothing
is downloaded.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[1]
VOCABULARY = ROOT / "tests/golden/spm/en_small.model"
CONFIG = {"vocab_size": 6000, "embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2}
CONFIG |= {"num_hidden_layers": 1, "intermediate_size": 32, "max_position_embeddings": 64}
# A command may print only lines that the library logs through absl.
LINE = re.compile(r"I\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (\w+\.py):\d+\] ")
MODULES = {path.name for path in (ROOT / "albert_tf").rglob("*.py")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """Built from a copy of the sources, because building leaves files beside them."""
    source, built = (tmp_path_factory.mktemp(name) for name in ("source", "built"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "golden", "node_modules")
    for name in ("albert_tf", "data", "tests", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    pip("wheel", "--no-build-isolation", f"--wheel-dir={built}", source)
    (wheel,) = built.iterdir()
    return wheel


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ("--no-deps", "--no-index")
    subprocess.run([*command, *map(str, arguments), *options], check=True, timeout=300)


@pytest.fixture(scope="module")
def commands(wheel, tmp_path_factory) -> pathlib.Path:
    """The folder of commands in an environment that has only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=os.name != "nt")
    paths = {"base": str(folder), "platbase": str(folder)}
    # Python 3.10 has no scheme of that name; there virtual environments have the usual one.
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    places = (sysconfig.get_path(name, scheme, paths) for name in ("scripts", "purelib"))
    scripts, library = map(pathlib.Path, places)
    pip("--python", scripts / "python", "install", "--no-compile", wheel)
    link_dependencies(library)
    return scripts


def link_dependencies(library: pathlib.Path) -> None:
    """Links the dependencies of the packages there, also indirect ones, into the same folder."""
    found, missing = set(), list(metadata.distributions(path=[str(library)]))
    while missing:
        for text in missing.pop().requires or ():
            requirement = Requirement(text)
            applies = not requirement.marker or requirement.marker.evaluate({"extra": ""})
            if not applies or requirement.name in found:
                continue
            found.add(requirement.name)
            package = metadata.distribution(requirement.name)
            missing.append(package)
            for name in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
                if not (library / name).exists():  # Several packages share google/.
                    (library / name).symlink_to(package.locate_file(name))


def test_a_wheel_holds_the_package_and_nothing_else(wheel):
    paths = [path for path in (ROOT / "albert_tf").rglob("*") if path.is_file()]
    expected = {str(p.relative_to(ROOT)) for p in paths if "__pycache__" not in p.parts}
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert {"albert_tf/py.typed", "albert_tf/configs/recipes/cola.flags"} < names


@pytest.fixture
def run(commands, tmp_path):
    own = ("PYTHON", "TF_", "XLA_", "KERAS_", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}

    def run(command: str, *flags: str, code: int = 0) -> str:
        how = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
        ended = subprocess.run([commands / command, *flags], timeout=300, **how)
        assert ended.returncode == code, ended.stderr[-3000:]
        found = [(line, LINE.match(line)) for line in ended.stderr.splitlines()]
        assert not [line for line, ours in found if not ours or ours[1] not in MODULES]
        return ended.stdout

    return run


@pytest.mark.slow
def test_it_trains_exports_and_predicts(run, tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    shutil.copy(VOCABULARY, tmp_path / "spm.model")
    rows = [f"{'good' if i % 2 else 'bad'} and {i},{i % 2}" for i in range(24)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    run("albert-finetune", "--recipe=cola", "--task_name=classification", "--train_file=rows.csv",
        "--eval_file=rows.csv", "--nodo_predict", "--from_scratch", "--spm_model_file=spm.model",
        "--albert_config_file=tiny.json", "--output_dir=tuned", "--max_seq_length=16",
        "--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4", "--train_batch_size=8",
        "--export_dir=exported")  # fmt: skip
    (tmp_path / "texts.txt").write_text("good and fine\nbad\n")
    printed = run("albert-predict", "--model=exported", "--input_file=texts.txt", "--json")
    answers = [json.loads(line) for line in printed.splitlines()]
    assert [answer["input"] for answer in answers] == [["good and fine"], ["bad"]]
    assert {answer["label"] for answer in answers} <= {"0", "1"}


@pytest.mark.slow
def test_each_command_says_what_it_does(run, commands):
    found = sorted(path.name for path in commands.glob("albert-*"))
    assert len(found) == 10
    for command in found:
        of = ["sizes"] if command == "albert-inspect" else []
        assert len(run(command, *of, "--help", code=1).splitlines()) > 9, command
