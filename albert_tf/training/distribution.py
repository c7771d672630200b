"""tf.distribute's strategy for a machine: made, and this process' part in it."""

from __future__ import annotations

import importlib.metadata
import signal
import threading

import tensorflow as tf

from albert_tf import cluster


def create_strategy(
    use_tpu: bool = False,
    tpu_name: str | None = None,
    tpu_zone: str | None = None,
    gcp_project: str | None = None,
    master: str | None = None,
    num_tpu_cores: int | None = None,
) -> tf.distribute.Strategy:
    """Chooses a strategy for the machine.

    A TPU if asked for; else all workers of TF_CONFIG, if it names more than one; else all GPUs of
    this machine (or all logical CPUs, if several are configured); else its one device.

    Args:
      use_tpu: Whether to train on a TPU.
      tpu_name: Name or grpc address of the TPU; "local" on a TPU VM.
      tpu_zone: Its zone; detected automatically on Google Cloud.
      gcp_project: Its project; detected automatically on Google Cloud.
      master: grpc address of the TPU, if it has no name.
      num_tpu_cores: Expected number of cores; None does not check.

    Returns:
      The strategy.

    Raises:
      ValueError: If the TPU can't be reached or has another number of cores, or TF_CONFIG is wrong
        or names several workers beside a TPU.
    """
    if use_tpu:
        if cluster.num_workers() > 1:  # Each would train alone, and write the same files.
            raise ValueError(
                f"TF_CONFIG names {cluster.num_workers()} workers, but TensorFlow trains on a TPU "
                "from one process: set `backend=jax` on each, or unset TF_CONFIG and give "
                "`tpu_name` on one machine"
            )
        return _tpu_strategy(tpu_name or master or "local", tpu_zone, gcp_project, num_tpu_cores)
    if cluster.num_workers() > 1:
        cluster.log_others()
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if threading.current_thread() is threading.main_thread():
            # TensorFlow takes it as a notice, and would go on.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return strategy
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.OneDeviceStrategy(devices[0].name)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files."""
    resolver = strategy.cluster_resolver
    if resolver is None or isinstance(strategy, tf.distribute.TPUStrategy):
        return True
    return not resolver.task_type or (
        resolver.task_type == "chief"
        or (resolver.task_type == "worker" and resolver.task_id == 0 and not cluster.has_chief())
    )


def input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext:
    """Returns which part of the input this process feeds to its replicas."""
    hosts, host = 1, 0
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        hosts, host = cluster.num_workers(), cluster.index()
    return tf.distribute.InputContext(hosts, host, strategy.num_replicas_in_sync)


def mean_over_workers(strategy: tf.distribute.Strategy, *values: float) -> list[float]:
    """Returns the means of the values over all workers; waits until every worker calls it."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return list(values)
    return _mean_over_replicas(strategy, tf.constant(values, tf.float64)).numpy().tolist()


@tf.function(autograph=False)
def _mean_over_replicas(strategy: tf.distribute.Strategy, values: tf.Tensor) -> tf.Tensor:
    def mean(x: tf.Tensor) -> tf.Tensor:
        # The reduction needs the device of its operand; an argument has none.
        x = tf.identity(x)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, x)

    return strategy.experimental_local_results(strategy.run(mean, args=(values,)))[0]


def _tpu_strategy(
    name: str, zone: str | None, project: str | None, num_cores: int | None
) -> tf.distribute.TPUStrategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=name, zone=zone, project=project
        )
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    # A RuntimeError: cloud-tpu-client, which finds a TPU by its name, is not installed.
    except (ValueError, IndexError, OSError, ImportError, RuntimeError, tf.errors.OpError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"TPU {name!r} can't be used ({reason}): {_tpu_remedy(name, str(error))}; or leave "
            "`use_tpu` out to train on CPU or GPU"
        ) from None
    if num_cores is not None and strategy.num_replicas_in_sync != num_cores:
        raise ValueError(
            f"TPU {name!r} has {strategy.num_replicas_in_sync} cores, but `num_tpu_cores` is "
            f"{num_cores}: set it to {strategy.num_replicas_in_sync}"
        )
    return strategy


def _tpu_remedy(name: str, reason: str) -> str:
    """Returns advice for a TPU that was not found; TensorFlow's messages have none."""
    packages = {
        (distribution.metadata["Name"] or "").lower().replace("_", "-")
        for distribution in importlib.metadata.distributions()
    }
    if "cloud-tpu-client" in reason:
        return "install cloud-tpu-client, which finds a TPU by its name"
    if "tensorflow-tpu" not in packages:
        return "this TensorFlow has no TPU support: install the packages in docs/tpu.md"
    if packages & {"tensorflow", "tensorflow-cpu"}:
        return (
            "tensorflow and tensorflow-tpu are installed over each other: install the packages in "
            "docs/tpu.md into a new environment"
        )
    if name != "local":
        return "check `tpu_name`, `tpu_zone` and `gcp_project`"
    if "lockfile" in reason or "in use" in reason:
        return "another process is using it: stop that first"
    return "this machine has no TPU: run on a TPU VM"
