"""The threads' pool under ThreadSanitizer, and faults that it has to find."""

from pathlib import Path

import pytest
from thread_sanitizer import compile_stress, run_stress, sanitizer  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
POOL = ROOT / "csrc" / "cpu" / "pool.cpp"
STRESS = ROOT / "tests" / "native" / "pool_stress.cpp"
RUNS = 2000
COMES = "++job->inside;"  # where a thread comes to a job, sometimes late

# name: (what pool.cpp says, the same with the fault)
FAULTS = {
    "done_relaxed": ("fetch_add(mine_, std::memory_order_acq_rel)", "fetch_add(mine_, std::memory_order_relaxed)"),
    "not_joined": ("- loop) <= 0;)", "- loop) < 0;)"),
    "loop_over_unseen": ("if (ahead > 0 || next == count) break;", "if (next == count) break;"),
    "job_unchecked": ("if (job_ == job)", "if (true)"),
    "job_in_use": ("while (job->inside) ++job;", ""),
}


def compile_pool(folder: Path, fault: tuple[str, str] | None = None) -> Path:
    text = POOL.read_text()
    assert text.count(COMES) == 1
    text = text.replace(COMES, f"if (++comes % 16 == 0) usleep(comes % 300);\n{COMES}")
    text = text.replace("namespace ssd {", "namespace ssd {\nstatic thread_local unsigned comes;", 1)
    if fault:
        assert text.count(fault[0]) == 1, fault[0]
        text = text.replace(*fault)
    (folder / "pool.cpp").write_text(text)
    return compile_stress(folder / "stress", f"-I{ROOT / 'csrc' / 'cpu'}", STRESS, folder / "pool.cpp")


def test_every_item_is_done_once_and_loop_after_loop(sanitizer, tmp_path):  # noqa: F811
    done = run_stress(compile_pool(tmp_path), RUNS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(sanitizer, name, tmp_path):  # noqa: F811
    binary = compile_pool(tmp_path, FAULTS[name])
    for _ in range(5):  # whether it shows in one run is up to the threads
        if (done := run_stress(binary, RUNS)).returncode:
            break
    assert done.returncode in (1, 66), done.stdout
    assert "INVARIANT" in done.stderr or "ThreadSanitizer" in done.stderr
