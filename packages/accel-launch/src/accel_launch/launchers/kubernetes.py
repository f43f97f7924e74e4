"""A job on Kubernetes: its manifest, printed with ``--dry-run``, or handed to ``kubectl``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from accel_launch.kubernetes.manifests import KINDS
from accel_launch.kubernetes.workload import workload_of
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.launchers.submission import submit
from accel_launch.messages import show
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest
from accel_state.errors import LaunchError


class KubernetesLauncher(BuiltInLauncher):
    """Makes a JobSet or PyTorchJob with one pod for each machine; in each, ``accel launch`` starts its ranks."""

    name: ClassVar[str] = "kubernetes"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        kind = KINDS[request.value("kubernetes_kind")]
        workload = workload_of(request, index_variable=kind.index_variable)
        file: str | None = request.value("kubernetes_manifest")
        return LaunchPlan(
            self.name,
            # `create`, since `apply` would start nothing where a job of this name is already done.
            (ProcessPlan(("kubectl", "create", "--filename", "-"), request.cwd),),
            num_ranks=workload.num_processes,
            grace_period_s=request.value("grace_period_s"),
            options={} if file is None else {"file": str(request.cwd / file)},
            document=_text_of(kind.manifest_of(workload)),
        )

    def run(self, plan: LaunchPlan) -> int:
        assert plan.document is not None
        if "file" in plan.options:
            return _write(plan.document, Path(plan.options["file"]))
        (kubectl,) = plan.processes
        answer = submit(
            kubectl,
            plan.document,
            asked_by="--launcher kubernetes",
            otherwise="Print the manifest with `--dry-run`, or write it with `--kubernetes_manifest FILE`, and create "
            "it where `kubectl` is.",
        )
        show(answer)
        return 0


def _text_of(manifest: dict[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes what occurs twice twice: a reader of manifests need not know references."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(manifest, Dumper=Dumper, sort_keys=False, width=1000)


def _write(document: str, file: Path) -> int:
    try:
        file.write_text(document, encoding="utf-8")
    except OSError as error:
        raise LaunchError(
            f"The manifest `{file}` cannot be written: {error.strerror}. Name another file."
        ) from error
    show(f"Wrote {file}")
    return 0
