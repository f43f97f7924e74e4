"""Settings of a launch on Kubernetes."""

from __future__ import annotations

from accel_launch.tables.parsers import dns_label, quantity, secret_references
from accel_state.environment.parsers import choice, index, text
from accel_state.environment.setting import rule

TITLE = "Kubernetes"

_setting = rule("kubernetes_{}", "", "--kubernetes_{}", "kubernetes_config.kubernetes_{}")

SETTINGS = (
    _setting("image", text, None, "Image of the containers, with Python, accel-launch and the script."),
    _setting("job_name", dns_label, None, "Name of the job; made from the script's name if omitted."),
    _setting("namespace", dns_label, None, "Namespace of the job; that of `kubectl` if omitted."),
    _setting(
        "kind",
        choice("jobset", "pytorchjob"),
        "jobset",
        "Resource to make: a JobSet or Kubeflow's PyTorchJob.",
    ),
    _setting(
        "gpus_per_node",
        index,
        None,
        "GPUs of each pod; as many as it has processes if omitted, none with `--cpu`.",
    ),
    _setting("gpu_resource", text, "nvidia.com/gpu", "What the cluster calls its GPUs."),
    _setting("cpu", quantity, None, "CPUs of each pod, such as `8` or `500m`."),
    _setting("memory", quantity, None, "Memory of each pod, such as `64Gi`."),
    _setting("working_dir", text, None, "Directory in the image to run in; the image's own if omitted."),
    _setting(
        "secrets",
        secret_references,
        None,
        "Variables that come from secrets of the cluster, such as `HF_TOKEN=hugging-face:token`, with commas between.",
    ),
    _setting("backoff_limit", index, 0, "How often the whole job is started again after a failure."),
    _setting("manifest", text, None, "File to write the manifest to, instead of handing it to `kubectl`."),
)
