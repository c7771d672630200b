"""Which strategy is chosen, and what is said when it can't be.

Not tested here: GPUs, TPUs. Two workers, two replicas and the lack of a TPU are in
test_run_pretraining_processes.py.
"""

import concurrent.futures
import importlib.metadata
import json
import signal
import types
import urllib.error

import pytest
import tensorflow as tf

from albert_tf.training import tensorflow_devices
from tests.kit import pretraining_runs as runs
from tests.training.toys import one_device

PLACE = {"type": "worker", "index": 0}
TWO = {"worker": ["a:1", "b:1"]}


@pytest.fixture
def tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return lambda value: monkeypatch.setenv(
        "TF_CONFIG", value if isinstance(value, str) else json.dumps(value)
    )


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", {}, {"cluster": {}, "task": {}}),
        {"cluster": {"worker": ["localhost:1"]}, "task": PLACE},
        {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": "0"}},
    ],
)
def test_without_a_tf_config_of_several_there_is_one_device(tf_config, value):
    if value is not None:
        tf_config(value)
    strategy = tensorflow_devices.create_strategy()
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert tensorflow_devices.is_chief(strategy)
    devices = tensorflow_devices.TensorFlowDevices(strategy)
    assert devices.num_replicas == 1 and devices.mean_over_processes(3.5, 0.0) == [3.5, 0.0]


def _sums(width: int) -> list[float]:
    """Returns the sum over two replicas, as the first of them has it."""
    strategy = tensorflow_devices.create_strategy()

    def add() -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([width]))

    found = tf.function(lambda: strategy.run(add), autograph=False)()
    return strategy.experimental_local_results(found)[0].numpy().tolist()


@pytest.mark.slow
def test_a_second_run_in_a_process_can_have_another_model():
    """Gradients are summed in the shapes of each model."""
    with concurrent.futures.ProcessPoolExecutor(1, runs.FORK_SERVER) as executor:
        executor.submit(runs.split_cpu, 2)
        for width in (2, 3):
            found = executor.submit(_sums, width).result(runs.TIMEOUT_SECONDS)
            assert found == [2.0] * width


@pytest.mark.parametrize(
    "value",
    [
        *("{", [1], {"cluster": TWO}, {"cluster": {"worker": [1, 2]}, "task": PLACE}),
        {"cluster": {"worker": "localhost:1"}, "task": PLACE},
        {"cluster": TWO, "task": {"type": "worker", "index": 2}},
        {"cluster": TWO, "task": {"type": "chief", "index": 0}},
        {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}},
    ],
)
def test_a_malformed_tf_config_is_refused(tf_config, value):
    tf_config(value)
    with pytest.raises(ValueError, match="TF_CONFIG must be .* where task names this") as caught:
        tensorflow_devices.create_strategy()
    assert "\n" not in str(caught.value)
    tf_config({"cluster": TWO, "task": PLACE})
    with pytest.raises(ValueError, match="names 2 workers, .* from one process: set `backend=jax`"):
        tensorflow_devices.create_strategy(use_tpu=True)


@pytest.mark.parametrize(
    ("cluster", "task", "chief"),
    [
        (TWO, ("worker", 0), True),
        (TWO, ("worker", 1), False),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("chief", 0), True),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("worker", 0), False),
    ],
)
def test_one_process_of_several_writes(tf_config, cluster, task, chief):
    """With a stub for the strategy: a real one waits for the other workers."""
    tf_config({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})

    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

    assert tensorflow_devices.is_chief(Strategy()) == chief


def test_sigterm_ends_a_worker_that_has_connected(tf_config, monkeypatch):
    """With a stub for the strategy: TensorFlow's own handler is not Python's."""
    tf_config({"cluster": TWO, "task": PLACE})
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def connect():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return "connected"

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", connect)
    try:
        assert tensorflow_devices.create_strategy() == "connected"
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


NO_TPU = tf.errors.InternalError(None, None, "RET_CHECK failure (tpu_node_interfaces.cc:432)")
MISSING = tf.errors.NotFoundError(None, None, "TPU is not found\nand more")
TAKEN = tf.errors.AbortedError(None, None, "Internal error when accessing libtpu lockfile.")
NAMED = "check `tpu_name`, `tpu_zone` and `gcp_project`"


@pytest.mark.parametrize(
    ("installed", "names", "error", "remedy"),
    [
        # No network, client library or TPU of that name; and where tensorflow-tpu finds no TPU.
        ("tensorflow-tpu", {"tpu_name": "mine"}, urllib.error.URLError("Name unknown"), NAMED),
        ("tensorflow-tpu", {"master": "mine"}, ImportError("googleapiclient must be"), NAMED),
        ("tensorflow-tpu", {"tpu_name": "mine"}, MISSING, NAMED),
        ("tensorflow-tpu", {"tpu_name": "mine"}, ImportError("cloud-tpu-client"), "install cloud-"),
        ("tensorflow-tpu", {"tpu_name": "mine"}, NO_TPU, NAMED),
        ("tensorflow", {}, NO_TPU, "this TensorFlow has no TPU"),
        ("tensorflow tensorflow_tpu", {}, NO_TPU, "tensorflow and tensorflow-tpu are"),
        ("tensorflow-tpu", {}, NO_TPU, "this machine has no TPU: run on a TPU VM"),
        ("tensorflow-tpu", {"tpu_name": "local"}, IndexError("index 0"), "this machine has no TPU"),
        ("tensorflow-tpu", {}, TAKEN, "another process is using it"),
    ],
)
def test_each_way_a_tpu_fails_has_its_remedy(monkeypatch, installed, names, error, remedy):
    def find(tpu, zone, project):
        assert (tpu, zone, project) == (next(iter(names.values()), "local"), "z", "p")
        if error not in (NO_TPU, TAKEN):
            raise error

    def initialize(resolver):
        raise error

    distributions = [types.SimpleNamespace(metadata={"Name": name}) for name in installed.split()]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: distributions)
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", find)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: None)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", initialize)
    message = f"^TPU '.*' can't be used .*: {remedy}.*leave `use_tpu` out"
    with pytest.raises(ValueError, match=message) as e:
        tensorflow_devices.create_strategy(use_tpu=True, tpu_zone="z", gcp_project="p", **names)
    assert "\n" not in str(e.value)


_SOCKET = """Collective ops is aborted by: Socket closed
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling \
/tensorflow.WorkerService/RecvBuf:
\t [[{{node CollectiveReduceV2}}]] [Op:__inference__train_steps_7]"""
_HEARTBEAT = """Collective ops is aborted by: Error reported from /job:worker/task:1: These \
tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events."""
_DEVICE = "OOM when allocating tensor on /job:worker/replica:0/task:12/device:CPU:0 by cpu"


@pytest.mark.parametrize("message", [_SOCKET, _HEARTBEAT, _DEVICE])
def test_a_lost_worker_is_named(message, tf_config, monkeypatch):
    devices = one_device()
    monkeypatch.setattr(devices, "num_processes", 2)
    tf_config({"cluster": {"worker": ["a:1", "b:2"]}, "task": PLACE})
    error, found = ConnectionError, r"^worker 1 \(b:2\) was lost \(Collective.*\): see its log, and"
    if message == _DEVICE:  # It names no worker.
        error, found = tf.errors.UnavailableError, "OOM"
    with pytest.raises(error, match=found) as caught, devices:
        raise tf.errors.UnavailableError(None, None, message)
    assert "\n" not in str(caught.value)
