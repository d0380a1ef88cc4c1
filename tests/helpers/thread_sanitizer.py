"""C++ programs under ThreadSanitizer."""

import shutil
import subprocess
from pathlib import Path

import pytest

FLAGS = ["-std=c++20", "-O2", "-g", "-fsanitize=thread", "-pthread", "-Wall", "-Wextra", "-Werror"]


def compile_stress(binary: Path, *arguments) -> Path:
    """The binary, compiled from sources and with flags."""
    subprocess.run(["g++", *FLAGS, *map(str, arguments), "-o", binary], check=True)
    return binary


def run_stress(binary: Path, *arguments) -> subprocess.CompletedProcess:
    command = [binary, *map(str, arguments)]
    env = {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66 report_atomic_races=1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="module")
def sanitizer(tmp_path_factory):
    """Skips if a program cannot be built or run under ThreadSanitizer."""
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed: the stress test is not run")
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.cpp").write_text("int main() { return 0; }\n")
    built = subprocess.run(
        ["g++", "-fsanitize=thread", folder / "probe.cpp", "-o", folder / "probe"], capture_output=True
    )
    if built.returncode or run_stress(folder / "probe").returncode:
        pytest.skip("ThreadSanitizer is not installed or cannot run here: the stress test is not run")
