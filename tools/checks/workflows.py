"""Audit the workflows with zizmor: pinned actions, few permissions, no credentials left, no templates in shells."""

import subprocess
import sys
from pathlib import Path

from tools.workspace import ROOT

if __name__ == "__main__":
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--quiet", "--pedantic"]
    sys.exit(subprocess.run([*command, ".github/workflows"], cwd=ROOT, check=False).returncode)
