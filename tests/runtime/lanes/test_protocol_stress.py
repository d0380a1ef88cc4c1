"""The C++ of the protocol under ThreadSanitizer, with random delays at every atomic step, and faults that it has to
find."""

import re
from pathlib import Path

import pytest
from thread_sanitizer import compile_stress, run_stress, sanitizer  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[3]
HEADER = ROOT / "csrc" / "include" / "ssd" / "spec_cache.h"
STRESS = ROOT / "tests" / "native" / "spec_cache_stress.cpp"
SWAPS = 1_000_000
TRIES = 300_000  # swaps of a run, within five of which a planted fault must show


def relaxed(name: str, type: str, argument: str) -> tuple[str, str]:
    weak = name.replace("acquire", "relaxed").replace("release", "relaxed")
    return f"{name}({argument}", f"(PLANTED ? {weak}<{type}> : {name}<{type}>)({argument}"


# name: (what the header says, the same with the fault)
FAULTS = {
    "ready_stored_relaxed": relaxed("store_release", "uint64_t", "ready + in_slab"),
    "ready_loaded_relaxed": relaxed("load_acquire", "uint64_t", "ready + in_slab"),
    "depth_stored_relaxed": relaxed("store_release", "int32_t", "depth_ready + branch"),
    "depth_loaded_relaxed": relaxed("load_acquire", "int32_t", "depth_ready + branch_at"),
    "flip_lost": ("store_release(active + slot", "if (!PLANTED) store_release(active + slot"),
    "stamp_unchecked": ("return load_relaxed(r + kEpoch)", "return PLANTED || load_relaxed(r + kEpoch)"),
    "life_unchecked": (
        "return load_relaxed(born + slot) == life;",
        "return PLANTED || load_relaxed(born + slot) == life;",
    ),
    "claim_unchecked": ("&& end <=", "&& (PLANTED ? 0 : end) <="),
    "epoch_shared": ("post(slot, -1, n ? ids", "if (!PLANTED || round[slot] == 1) post(slot, -1, n ? ids"),
}


def compile_lanes(folder: Path, faults: bool) -> Path:
    text = HEADER.read_text()
    for n, (right, wrong) in enumerate(FAULTS.values(), 1):
        assert text.count(right) == 1, right
        if faults:
            text = text.replace(right, wrong.replace("PLANTED", f"(planted == {n})"))
    text = text.replace('"host_device.h"', "<ssd/host_device.h>")
    text, n = re.subn(r"(SSD_HD \w+ (?:load|store)\w*\(T\* p[^)]*\) \{)", r"\1 stress_delay();", text)
    assert n == 4
    (folder / "ssd").mkdir()
    (folder / "ssd" / "spec_cache.h").write_text(text)
    return compile_stress(folder / "stress", f"-I{folder}", f"-I{ROOT / 'csrc' / 'include'}", STRESS)


def test_a_million_swaps(sanitizer, tmp_path):  # noqa: F811
    done = run_stress(compile_lanes(tmp_path, faults=False), SWAPS, 0, 1)
    assert done.returncode == 0, done.stdout + done.stderr
    rare = dict(re.findall(r"(late|skipped|mixed) (\d+)", done.stdout))
    assert all(int(n) > 0 for n in rare.values()) and len(rare) == 3, done.stdout


@pytest.fixture(scope="module")
def faulty(sanitizer, tmp_path_factory):  # noqa: F811
    return compile_lanes(tmp_path_factory.mktemp("faulty"), faults=True)


@pytest.mark.parametrize("n,name", list(enumerate(FAULTS, 1)))
def test_planted_fault_is_found(faulty, n, name):
    for seed in range(1, 6):  # whether it shows in one run is up to the two threads
        if (done := run_stress(faulty, TRIES, n, seed)).returncode:
            break
    assert done.returncode in (1, 66), done.stdout
    assert "INVARIANT" in done.stderr or "data race" in done.stderr
