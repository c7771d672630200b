"""Which strategy is chosen, and what is said when it can't be.

Can't see: GPUs, TPUs. Two workers, two replicas and the lack of a TPU are in
test_run_pretraining_processes.py.
"""

import importlib.metadata
import json
import signal
import urllib.error

import pytest
import tensorflow as tf

from albert_tf.training import tensorflow_devices

PLACE = {"type": "worker", "index": 0}


@pytest.fixture
def tf_config(monkeypatch):
    def set_to(value):
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv("TF_CONFIG", text)

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return set_to


def test_one_device(tf_config):
    strategy = tensorflow_devices.create_strategy()
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert strategy.num_replicas_in_sync == 1
    assert tensorflow_devices.is_chief(strategy)
    devices = tensorflow_devices.TensorFlowDevices(strategy)
    assert devices.mean_over_processes(3.5, 0.0) == [3.5, 0.0]


@pytest.mark.parametrize(
    "value",
    [
        "",
        {},
        {"cluster": {}, "task": {}},
        {"cluster": {"worker": ["localhost:1"]}, "task": PLACE},
        {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": "0"}},
    ],
)
def test_a_tf_config_of_one_machine_is_one_device(tf_config, value):
    tf_config(value)
    strategy = tensorflow_devices.create_strategy()
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert tensorflow_devices.is_chief(strategy)


@pytest.mark.parametrize(
    "value",
    [
        "{",
        [1],
        {"cluster": {"worker": "localhost:1"}, "task": PLACE},
        {"cluster": {"worker": [1, 2]}, "task": PLACE},
        {"cluster": {"worker": ["a:1", "b:1"]}},
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}},
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}},
        {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}},
    ],
)
def test_a_malformed_tf_config_is_refused(tf_config, value):
    tf_config(value)
    with pytest.raises(ValueError, match="TF_CONFIG must be .* where task names this") as caught:
        tensorflow_devices.create_strategy()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "task", "chief"),
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), True),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), False),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("chief", 0), True),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("worker", 0), False),
    ],
)
def test_one_process_of_several_writes(tf_config, cluster, task, chief):
    """With a resolver in place of a strategy: a real one waits for the other workers."""
    tf_config({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})

    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

    assert tensorflow_devices.is_chief(Strategy()) == chief


def test_sigterm_ends_a_worker_that_has_connected(tf_config, monkeypatch):
    """With a class in place of the strategy's: TensorFlow's own handler is not Python's."""
    tf_config({"cluster": {"worker": ["a:1", "b:1"]}, "task": PLACE})
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


def test_a_tpu_of_several_workers_is_refused(tf_config):
    tf_config({"cluster": {"worker": ["a:1", "b:1"]}, "task": PLACE})
    with pytest.raises(ValueError, match="names 2 workers, .* from one process: set `backend=jax`"):
        tensorflow_devices.create_strategy(use_tpu=True)


# What TensorFlow raises where there is no network, client library or TPU of that name; where
# tensorflow-tpu finds no TPU; and beside another process.
NOT_FOUND = [
    urllib.error.URLError("Name or service not known"),
    ImportError("googleapiclient must be installed"),
    ValueError("Please provide a TPU Name"),
    tf.errors.NotFoundError(None, None, "TPU is not found\nand more"),
]
NO_TPU = tf.errors.InternalError(None, None, "RET_CHECK failure (tpu_node_interfaces.cc:432)")
TAKEN = tf.errors.AbortedError(None, None, "Internal error when accessing libtpu lockfile.")
THEIRS = ["tensorflow-tpu"]


@pytest.mark.parametrize(
    ("installed", "names", "error", "remedy"),
    [
        *((THEIRS, {"tpu_name": "mine"}, error, "check `tpu_name`") for error in NOT_FOUND),
        *((THEIRS, {"master": "mine"}, error, "check `tpu_name`") for error in NOT_FOUND),
        (["tensorflow"], {}, NO_TPU, "this TensorFlow has no TPU"),
        (["tensorflow", "tensorflow_tpu"], {}, NO_TPU, "tensorflow and tensorflow-tpu are"),
        (THEIRS, {}, NO_TPU, "this machine has no TPU: run on a TPU VM"),
        (THEIRS, {"tpu_name": "local"}, IndexError("index 0"), "this machine has no TPU"),
        (THEIRS, {}, TAKEN, "another process is using it"),
        (THEIRS, {"tpu_name": "mine"}, NO_TPU, "check `tpu_name`, `tpu_zone` and `gcp_project`"),
    ],
)
def test_each_way_a_tpu_fails_has_its_remedy(monkeypatch, installed, names, error, remedy):
    class Installed:
        def __init__(self, name):
            self.metadata = {"Name": name}

    def find(tpu, zone, project):
        assert (tpu, zone, project) == (next(iter(names.values()), "local"), "z", "p")
        if error in NOT_FOUND:
            raise error

    def initialize(resolver):
        raise error

    monkeypatch.setattr(importlib.metadata, "distributions", lambda: map(Installed, installed))
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
:UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference__train_steps_7]"""
_HEARTBEAT = """Collective ops is aborted by: Error reported from /job:worker/task:1: These \
tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events.
The error could be from a previous operation. Restart your program to reset."""


@pytest.mark.parametrize("message", [_SOCKET, _HEARTBEAT])
def test_a_lost_worker_is_named(message, tf_config, monkeypatch):
    devices = tensorflow_devices.TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))
    monkeypatch.setattr(devices, "num_processes", 2)
    tf_config({"cluster": {"worker": ["a:1", "b:2"]}, "task": PLACE})
    found = r"^worker 1 \(b:2\) was lost \(Collective ops is aborted by: .*\): see its log, and"
    with pytest.raises(ConnectionError, match=found) as caught, devices:
        raise tf.errors.UnavailableError(None, None, message)
    assert "\n" not in str(caught.value)


def test_a_device_in_a_message_is_no_lost_worker(monkeypatch):
    devices = tensorflow_devices.TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))
    monkeypatch.setattr(devices, "num_processes", 2)
    message = "OOM when allocating tensor on /job:worker/replica:0/task:12/device:CPU:0 by cpu"
    with pytest.raises(tf.errors.ResourceExhaustedError), devices:
        raise tf.errors.ResourceExhaustedError(None, None, message)
