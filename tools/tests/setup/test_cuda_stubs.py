"""Stubs of CUDA's libraries, made with the real compiler and read by the real loader."""

import os
import subprocess
import sys

import pytest

from tools.setup.cuda_stubs import NO_DEVICE, make_stubs

CUDART = "int cudaGetDeviceCount(int *n) { *n = 8; return 0; }\nint cuInit(int f) { return 0; }\n"
USER = """
int cudaGetDeviceCount(int *n);
int cuInit(int f);
int own(void) { return 7; }
int count(void) { int n; return cudaGetDeviceCount(&n) + cuInit(0) + own(); }
"""


def compile_library(file, source, *options):
    code = file.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", file, code, *options], check=True)


@pytest.mark.engine("xla")
def test_a_library_that_links_to_cuda_loads_and_finds_no_device(tmp_path):
    real, torch = tmp_path / "real", tmp_path / "torch"
    real.mkdir()
    torch.mkdir()
    versions = tmp_path / "versions"
    versions.write_text("libcudart.so.12 { global: *; };\n")
    cudart = real / "libcudart.so.12"
    compile_library(cudart, CUDART, f"-Wl,-soname,{cudart.name}", f"-Wl,--version-script={versions}")
    compile_library(torch / "libuser.so", USER, str(cudart))

    make_stubs(torch, tmp_path / "stubs")

    code = f"import ctypes; print(ctypes.CDLL({str(torch / 'libuser.so')!r}).count())"
    environ = os.environ | {"LD_LIBRARY_PATH": str(tmp_path / "stubs"), "LD_BIND_NOW": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{2 * NO_DEVICE + 7}\n", "")
