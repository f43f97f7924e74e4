"""Cores near a device, on made-up trees of `/sys`."""

import pytest

from accel_state.affinity import cores_near
from accel_state.errors import NotAvailableError


@pytest.fixture
def tree(tmp_path):
    """Two sockets, a node of memory alone beside the second, and GPUs on all of them."""
    nodes = tmp_path / "devices" / "system" / "node"
    for number, cores, distances in (
        (0, "0-3,8-11", "10 21 40"),
        (1, "4-7,12-15", "21 10 20"),
        (4, "", "40 20 10"),
    ):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}" / "cpulist").write_text(f"{cores}\n")
        (nodes / f"node{number}" / "distance").write_text(f"{distances}\n")
    (nodes / "online").write_text("0-1,4\n")
    for bus, node in (("17", 0), ("31", 0), ("b1", 1), ("ca", 4), ("e3", -1)):
        folder = tmp_path / "bus" / "pci" / "devices" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return tmp_path


def test_gpus_of_one_node_share_its_cores(tree):
    first = {0, 1, 2, 3, 8, 9, 10, 11}
    assert cores_near("0000:17:00.0", root=tree) == cores_near("0000:31:00.0", root=tree) == first
    assert cores_near("0000:b1:00.0", root=tree) == set(range(16)) - first


def test_a_node_without_cores_uses_those_of_the_nearest_that_has_some(tree):
    assert cores_near("0000:ca:00.0", root=tree) == cores_near("0000:b1:00.0", root=tree)


def test_a_device_that_belongs_to_no_node_is_near_to_none(tree):
    assert cores_near("0000:e3:00.0", root=tree) is None


def test_a_system_that_reports_no_cores_is_an_error(tree, tmp_path):
    for root, bus_id in ((tree, "0000:ff:00.0"), (tmp_path / "none", "0000:17:00.0")):
        with pytest.raises(
            NotAvailableError,
            match="does not report which cores .*numa_node.*Set `enable_cpu_affinity` to false",
        ):
            cores_near(bus_id, root=root)
