import sys

import pytest

from accel_state.errors import StateError
from accel_state.peer_package import refuse_accelerate


def test_only_a_package_with_code_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    refuse_accelerate()
    (tmp_path / "accelerate").mkdir()
    refuse_accelerate()  # a folder that happens to be called so
    (tmp_path / "accelerate" / "__init__.py").touch()
    sys.path_importer_cache.pop(str(tmp_path), None)
    with pytest.raises(StateError, match=r"accelerate.__init__\.py(?s:.)*pip uninstall accelerate"):
        refuse_accelerate()
