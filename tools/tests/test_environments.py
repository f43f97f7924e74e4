import pytest

from tools.environments import inputs_of, uv_variables_of
from tools.wheels import floors_of, pinned
from tools.workspace import read_packages

SETTINGS = """\
:env:.find-links='/wheels /more'
global.cert='/ca.crt'
global.extra-index-url='\\nfile:///a\\nfile:///b'
global.find-links='/of-all'
global.index-url='https://mirror/simple'
global.timeout='60'
"""


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("constraints.txt", "2.13.0", "2.13.1"),
        ("packages/accel-ops/pyproject.toml", "numpy>=1.26", "numpy>=2.0"),
        ("packages/accel-data/src/accel_data/__init__.py", "0.1.0", "0.1.1"),
        ("pyproject.toml", '["rich"]', '["rich", "accelerate"]'),
    ],
)
def test_an_environment_is_made_again_when_what_is_wanted_changes(checkout, path, old, new):
    constraints = checkout.write("constraints.txt", "torch==2.13.0\n")
    before = inputs_of(constraints, root=checkout.root)
    checkout.write("packages/accel-ops/src/accel_ops/new.py", "")
    assert inputs_of(constraints, root=checkout.root) == before
    checkout.replace(path, old, new)
    assert inputs_of(constraints, root=checkout.root) != before


def test_uv_installs_from_where_pip_does():
    assert uv_variables_of(SETTINGS) == {
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/ca.crt",
        "UV_HTTP_TIMEOUT": "60",
    }


def test_every_package_is_pinned_to_its_wheel_and_torch_to_the_release_asked_for(tmp_path):
    wheel = tmp_path / "accel_ops-0.2.0-py3-none-any.whl"
    lines = pinned([wheel], torch="2.9", floors=["numpy==1.26"]).read_text().splitlines()
    assert lines[-3:] == ["torch==2.9.*", f"accel-ops @ {wheel.as_uri()}", "numpy==1.26"]
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.9.*"]


def test_floors_are_the_lowest_versions_that_all_packages_accept(checkout):
    wanted = '"numpy>=2.0,<3", "torch>=2.13", "accel-state~=0.1.0"'
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', wanted)
    packages = read_packages(checkout.root)
    assert floors_of([packages["accel-ops"], packages["accel-state"]]) == ["numpy==2.0"]
