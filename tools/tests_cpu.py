"""A pytest plugin: CPU seconds (user and system, with children, fork servers too) of each folder.

`pytest -p tools.tests_cpu --cpu_seconds=FILE` also writes those of each test, separated by tabs.
"""

import collections
import os
import pathlib

import pytest


def pytest_addoption(parser):
    parser.addoption("--cpu_seconds", help="write the CPU seconds of each test to this file")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the process that prints, not a worker of xdist's
        config.pluginmanager.register(_Report(config), "tests_cpu_report")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.user_properties.append(("cpu_seconds", item.stash.setdefault(_SPENT, 0.0)))
    return report


_SPENT = pytest.StashKey[float]()


def _measured(item):
    before = _cpu_seconds()
    result = yield
    item.stash[_SPENT] = _cpu_seconds() - before
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    return (yield from _measured(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    return (yield from _measured(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    return (yield from _measured(item))


def _cpu_seconds(process="self"):
    """Returns the CPU seconds of a process, its reaped children, and descendants that still run."""
    folder = pathlib.Path("/proc", process)
    try:
        # utime, stime, cutime and cstime; the name before them may contain anything.
        ticks = sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:15]))
        children = [file.read_text().split() for file in folder.glob("task/*/children")]
    except (FileNotFoundError, ProcessLookupError):  # It has just ended.
        return 0.0
    running = sum(_cpu_seconds(child) for of_thread in children for child in of_thread)
    return ticks / os.sysconf("SC_CLK_TCK") + running


class _Report:
    def __init__(self, config):
        self.file = config.getoption("cpu_seconds")
        self.by_test = collections.Counter()

    def pytest_runtest_logreport(self, report):
        self.by_test[report.nodeid] += dict(report.user_properties).get("cpu_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        folders, tests = collections.Counter(), collections.Counter()
        for name, seconds in self.by_test.items():
            folder = os.path.dirname(name.split("::")[0])
            folders[folder] += seconds
            tests[folder] += 1
        terminalreporter.section("CPU seconds")
        for folder, seconds in folders.most_common():
            terminalreporter.write_line(f"{seconds:8.1f}  {folder} ({tests[folder]} tests)")
        terminalreporter.write_line(f"{sum(folders.values()):8.1f}  all")
        if self.file:
            lines = [f"{seconds:.2f}\t{name}\n" for name, seconds in self.by_test.most_common()]
            pathlib.Path(self.file).write_text("".join(lines))
