"""How much KV there is: sized from what is free, or refused in one sentence before the first request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from draft_helpers import write_draft
from fakes import make

from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM
from ssd.runtime.devices import kv_memory
from ssd.runtime.devices.free_memory import GIB, host_memory, ran_out, weights_fit
from ssd.runtime.devices.kv_memory import KVPart, size_kv

CPU, GPU, OTHER = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")
PAGE = 16 * 131072  # bytes of a page of Llama-8B


def parts(device=GPU, draft_device=GPU, most=None):
    return [
        KVPart("target", device, PAGE, 16, 8, weights=16 * GIB),
        KVPart("draft", draft_device, PAGE // 4, 16, 136, most, weights=2 * GIB),
    ]


@pytest.fixture
def free(monkeypatch):
    """Sets the GiB that are free on each device."""

    def set_free(**gib):
        names = {"cpu": CPU, "gpu": GPU, "other": OTHER}
        found = {names[name]: None if n is None else int(n * GIB) for name, n in gib.items()}
        monkeypatch.setattr(kv_memory, "free_memory", lambda device: found[device])

    return set_free


def test_a_gpu_gives_what_is_free_to_both_models_in_one_proportion(free):
    free(gpu=120)
    tokens = size_kv(parts(), None, 32768, 8 * 131072)
    room = 0.9 * 120 * GIB - GIB
    taken = [part.bytes(tokens) for part in parts()]
    assert room - 16 * 131072 * 2 < sum(taken) <= room
    assert [part.pages(tokens) - part.spare for part in parts()] == [-(-tokens // 16)] * 2
    assert size_kv(parts(), 100_000, 32768, 8 * 131072) == 100_000
    assert size_kv(parts(), None, 32768, 131072) == 131072  # no more than requests can need
    assert size_kv(parts(most=4), None, 32768, 8 * 131072) > tokens  # a draft that needs fewer pages leaves more


def test_what_does_not_fit_is_refused_with_both_needs_and_what_is_left(free):
    free(gpu=20)
    with pytest.raises(MemoryError) as e:
        size_kv(parts(), 200_000, 32768, 8 * 131072)
    fits = size_kv(parts(), None, 32768, 8 * 131072)
    assert str(e.value) == (
        "kv_tokens: 200000 tokens of KV cache take 24.43 GiB for the target and 6.17 GiB for the draft on cuda:0, "
        f"where 17.00 GiB are free for that beside 18.00 GiB of weights; ask for at most {fits} tokens"
    )
    assert size_kv(parts(), fits, 32768, 8 * 131072) == fits
    with pytest.raises(MemoryError):
        size_kv(parts(), fits + 16, 32768, 8 * 131072)
    free(gpu=1.2)
    with pytest.raises(MemoryError, match="1024 tokens .* choose smaller models, formats or another device$"):
        size_kv(parts(), None, 32768, 8 * 131072)
    with pytest.raises(MemoryError, match="64 tokens"):
        size_kv(parts(), None, 64, 64)


def test_each_device_is_asked_for_what_lies_there(free):
    free(gpu=120, other=5)
    tokens = size_kv(parts(draft_device=OTHER), None, 32768, 8 * 131072)
    assert 5 * 0.8 * GIB < parts()[1].bytes(tokens) + GIB <= 0.9 * 5 * GIB + 1
    with pytest.raises(MemoryError, match="GiB for the draft on cuda:1, .* beside 2.00 GiB"):
        size_kv(parts(draft_device=OTHER), 200_000, 32768, 8 * 131072)


def test_the_cpu_has_the_usual_number_where_it_fits(free):
    free(cpu=100)
    assert size_kv(parts(CPU, CPU), None, 32768, 8 * 131072) == 32768
    free(cpu=None)
    assert size_kv(parts(CPU, CPU), None, 32768, 8 * 131072) == 32768
    assert size_kv(parts(CPU, CPU), 10**9, 32768, 8 * 131072) == 10**9
    free(cpu=3)
    assert 10_000 < size_kv(parts(CPU, CPU), None, 32768, 8 * 131072) < 32768
    with pytest.raises(MemoryError, match="on cpu, where 3.00 GiB"):
        size_kv(parts(CPU, CPU), 32768, 32768, 8 * 131072)


def test_an_llm_has_as_many_tokens_as_fit_or_says_so(tiny_folder, tiny_target, tmp_path, free):
    """And no memory is taken before."""
    draft = Draft.load(write_draft(tmp_path / "d", layers=[1]), tiny_target, "bf16")

    def made(gib, **options):
        free(cpu=gib)
        sizes = {"mode": "sd", "max_batch": 2, "threads": 1}
        return LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, **sizes, **options)

    engine = made(1).engine
    runner = engine.speculator.runner
    assert engine.allocator.num_pages == 2 * 256 // 16 + 2 and runner.memory.allocator.num_pages == 2 * 17
    with pytest.raises(MemoryError, match="^kv_tokens: 4096000 tokens .* for the target and .* for the draft on cpu"):
        made(0.25, kv_tokens=4096000)
    with pytest.raises(MemoryError, match="^kv_tokens: 512 tokens"):
        made(2**-20)
    free(cpu=2**-30 * 8 * 1900)
    assert make(max_batch=9).max_model_len == 256 and make(max_batch=9).engine.allocator.num_pages == 1900 // 16


def test_memory_that_the_system_and_control_groups_leave(tmp_path):
    def left(meminfo, cgroup="", **files):
        for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return host_memory(tmp_path)

    info, group = "MemTotal: 99 kB\nMemAvailable:   5000 kB\n", "sys/fs/cgroup/a/"
    assert left(info) == 5000 * 1024 and left("") is None
    files = {group + "memory.max": "max\n", group + "memory.current": "7\n"}
    assert left(info, "0::/a\n", **files) == 5000 * 1024
    files = {group + "memory.max": "3000000\n", group + "memory.current": "2000000\n"}
    assert left(info, "0::/a\n", **files) == 1000000
    stat = {group + "memory.stat": "anon 5\nfile 9\ninactive_file 1500000\n"}
    assert left(info, "0::/a\n", **files, **stat) == 2500000
    old = {f"sys/fs/cgroup/memory/x/memory.{n}": v for n, v in (("limit_in_bytes", "90"), ("usage_in_bytes", "99"))}
    assert left(info, "4:memory:/x\n", **old) == 0


def test_weights_that_do_not_fit_are_told_of_in_a_sentence():
    for error in (torch.OutOfMemoryError("CUDA out of memory"), MemoryError("no memory for 1.0 GiB")):
        with pytest.raises(MemoryError, match="^no memory for the weights of the draft on cpu.*: choose a smaller"):
            with weights_fit("draft", CPU):
                raise error
    with pytest.raises(RuntimeError, match="planted"), weights_fit("draft", CPU):
        raise RuntimeError("planted")
    with pytest.raises(RuntimeError) as e:
        torch.empty(2**55)
    assert ran_out(e.value) and not ran_out(RuntimeError("planted"))


SIMULATED = """
import sys, tempfile, pathlib
import simulated_gpu, tiny_checkpoint
from draft_helpers import write_draft
simulated_gpu.install()
import torch
from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
folder = tiny_checkpoint.write(pathlib.Path(tempfile.mkdtemp()))
target = Llama.load(folder, "bf16", device="simgpu")
draft = Draft.load(write_draft(folder / "d", depth=2), target, "bf16")
def made(free):
    simulated_gpu.SIMULATOR.free = free
    return LLM.from_model(target, Tokenizer(folder), draft=draft, mode="sd", max_batch=8)
engine = made(100 << 30).engine
memory = engine.speculator.runner.memory
assert engine.kv.num_pages == 8 * 16 + 8 and memory.kv.num_pages == 8 * 17 and memory.kv.k.device.type == "simgpu"
page, some = engine.kv.nbytes // engine.kv.num_pages, 1 << 30
assert page == memory.kv.nbytes // memory.kv.num_pages == target.page_bytes()
engine = made(int((some + 200 * page) / 0.9) + 1).engine
assert (engine.kv.num_pages, engine.speculator.runner.kv.num_pages) == (96, 104)
try:
    made(some)
except MemoryError as e:
    print(e)
"""


def test_a_gpu_that_is_simulated_is_asked_for_what_is_free():
    pytest.importorskip("triton")
    tests = Path(__file__).parents[2]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(tests.parent), str(tests / "helpers")])
    run = subprocess.run([sys.executable, "-c", SIMULATED], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "kv_tokens: 1024 tokens of KV cache take" in run.stdout and "on simgpu:0, where 0.00 GiB" in run.stdout
