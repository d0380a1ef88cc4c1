"""What bench.launches says of launches: of the product's, every one of which must compile, and of planted ones."""

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import planted_kernels  # noqa: E402
from planted_kernels import general_kernel, guarded_kernel, plain_kernel, unguarded_kernel  # noqa: E402

from bench.kernel_report.triton import floats, ints, longs, recorded  # noqa: E402
from bench.launches.__main__ import ARCHS, every_signature, lowered  # noqa: E402
from bench.launches.measure import Allocations, host_time, measured, scratch  # noqa: E402
from bench.launches.passes import forms, passes  # noqa: E402
from bench.launches.signatures import (  # noqa: E402
    covering,
    distinct,
    failures,
    lower,
    noted,
    signature_of,
    signatures_of,
)
from bench.launches.specialisations import blamed  # noqa: E402
from ssd.kernels import llama_forward  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def product():
    """A signature for each kernel that the product's passes and calls need."""
    return every_signature()


def test_every_kernel_lowers_with_each_dtype_and_each_pattern_of_missing_arguments(product):
    some = covering(product)
    assert {s.name for s in some} == {
        name
        for package, module in sys.modules.items()
        for name, value in vars(module).items()
        if package.startswith("ssd.kernels.") and name.endswith("_kernel") and hasattr(value, "fn")
    }
    assert not failures(some, [90])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_signature_lowers_for_every_architecture(capsys):
    lowered("")
    assert "signatures" in capsys.readouterr().out


def test_an_unguarded_optional_argument_is_named():
    x = floats(4)
    with recorded() as launches:
        for extra in (x, None):
            unguarded_kernel[(1,)](x, extra, x, 0 if extra is None else 4)
            guarded_kernel[(1,)](x, extra, x, 0 if extra is None else 4, EXTRA=extra is not None)
    (failure,) = failures(signatures_of(launches), ARCHS[:1])
    assert "unguarded_kernel(x=float32*, extra=None" in failure and "sm_80" in failure


def test_the_command_ends_with_the_launches_that_fail(monkeypatch):
    x = floats(4)
    bad = signature_of(unguarded_kernel, (x, None, x, 0), {})
    monkeypatch.setattr("bench.launches.__main__.every_signature", lambda name: [bad])
    with pytest.raises(SystemExit) as end:
        lowered("")
    assert f"{bad} does not compile for sm_100" in end.value.code


def test_signatures_stand_for_all_launches_that_share_a_kernel():
    x = floats(64)
    with recorded() as launches:
        for n in (1, 2, 3, 16, 32, 1 << 40):
            plain_kernel[(1,)](x, n, 0)
            general_kernel[(1,)](x, n, 0)
        plain_kernel[(1,)](x[1:], 2, 0)
        plain_kernel[(1,)](x, 2, None)
    names = [s.name for s in distinct(signatures_of(launches))]
    assert names.count("plain_kernel") == 6  # 1, any, by 16, wide; not aligned; None
    assert names.count("general_kernel") == 2  # wide or not


def test_compiled_kernels_are_counted_as_triton_compiles_them():
    x = floats(64)

    def run(kernel):
        for n in (1, 2, 3, 16, 32, 1 << 40):
            kernel[(1,)](x, n, 0)

    for kernel, compiles in ((plain_kernel, 4), (general_kernel, 2)):
        microseconds, needed = host_time(lambda kernel=kernel: run(kernel))
        assert needed == compiles and 0 < microseconds < 1e5


def test_only_arguments_that_cost_a_kernel_are_to_blame():
    x = floats(64)
    with recorded() as launches:
        for n in (1, 2, 16):
            plain_kernel[(1,)](x, n, 3 * n)  # unused is specialised as n is, but for 1
            general_kernel[(1,)](x, n, 5)
    of = {name: [s for s in signatures_of(launches) if s.name == name] for name in ("plain_kernel", "general_kernel")}
    assert blamed(of["plain_kernel"]) == ["n", "unused"]
    assert blamed(distinct(of["general_kernel"])) == []


def test_allocations_count_kernels_of_torch_and_what_is_not_returned():
    x = floats(8)
    with Allocations() as a:
        y = torch.empty(10, device="meta")
        z = (y + 1).view(2, 5)[0]
        x.add_(1)
    assert a.kernels == 2
    assert a.beside((z,)) == 40


def test_scratch_is_what_an_operator_keeps_to_itself():
    """Of 3 rows over 2 chunks and 5 blocks: statistics, cuts, sorted bits and masses, scores and ids beside tokens and
    log-probabilities."""
    from ssd import kernels

    with forms(), recorded(), scratch() as most:
        filters = floats(3), ints(3), floats(3), floats(3), longs(3), longs(3)
        kernels.sample(floats(3, 5000), *filters, True)
    assert most["sample"] == 3 * 2 * 2 * 4 + 3 * 2 * 4 + 3 * 5 * 1024 * (4 + 8) + 2 * (3 * 2 * 4)
    assert kernels.sample.__module__ == "ssd.kernels.sample"  # nothing is left patched


def test_a_pass_of_the_default_draft_is_measured():
    with torch.inference_mode(), forms():
        (short, long) = (measured(p) for p in passes("draft of", ["draft"]) if p.sequences == 1 and p.format == "bf16")
    assert (short["rows"], short["context"], long["context"]) == (24, 500, 8192)
    assert short["launches"] == len(short["grids"]) and short["ctas"] >= short["launches"]
    assert 0 < short["compiles"] <= short["launches"] and short["scratch_bytes"] > 0
    assert short["torch_launches"] == 3  # the rows that have logits, and [norm(embedding), norm(hidden)], features
    assert llama_forward is torch.ops.ssd.llama_forward


def test_all_layers_of_a_pass_share_one_plan_of_attention():
    with torch.inference_mode(), forms():
        for p in passes("Llama-1B", ["verify", "prompt"]):
            names = [name for name, _ in measured(p)["grids"]]
            assert names.count("tree_attention_plan_kernel") == 1 and names.count("tree_attention_fwd_kernel") == 16


def test_programs_with_work_and_signatures_in_the_interpreter(tmp_path):
    file = tmp_path / "signatures"
    script = ROOT / "tests/helpers/planted_kernels.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(script.parent)])}
    command = [sys.executable, "-W", "ignore", str(script), str(file)]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    works = ast.literal_eval(run.stdout)
    assert works == [("list_kernel", 1), ("listed_kernel", 2)] * 2 + [("list_kernel", 1), ("listed_kernel", 1)] * 2

    found = pickle.loads(file.read_bytes())
    with recorded() as launches:
        planted_kernels.normed("meta")
    assert set(found) == set(signatures_of(launches)) and sum(found.values()) == len(launches) == 6
    for signature in found:
        lower(signature, 90)


def test_launches_are_noted_while_they_run():
    with noted() as found, recorded() as launches:
        planted_kernels.normed("meta")
    assert not found and len(launches) == 6  # what records last is asked first
    with recorded() as launches, noted() as found:
        planted_kernels.normed("meta")
    assert sum(found.values()) == len(launches) == 6
