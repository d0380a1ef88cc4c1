"""Processes forked after use, as web servers that load the model first make them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from draft_helpers import write_draft

PROGRAM = """
import os, sys, threading
import torch
from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams

mode, whose, target, draft = sys.argv[1:]

def made():
    torch.randn(1 << 22).sort()  # torch's own threads
    model = Llama.load(target, "bf16")
    return LLM.from_model(model, Tokenizer(target), draft=Draft.load(draft, model, "bf16"), mode=mode)

def answer(llm):
    return llm.generate("once upon a time", SamplingParams(seed=1, max_tokens=40, ignore_eos=True))[0].token_ids

llm = made()
wanted = answer(llm)
if whose == "busy":
    begun, forked = threading.Event(), threading.Event()

    def work():
        with llm._turns.turn():
            begun.set()
            forked.wait()

    threading.Thread(target=work).start()
    begun.wait()
if os.fork() == 0:
    try:
        assert answer(made() if whose == "new" else llm) == wanted
    except RuntimeError as e:
        print(e)
else:
    status = os.wait()[1]
    if whose == "busy":
        forked.set()
    else:
        assert answer(llm) == wanted  # the parent's goes on
    sys.exit(status != 0)
"""


def run(mode, whose, tiny_folder, tmp_path):
    draft = write_draft(tmp_path / "draft", depth=1)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, mode, whose, tiny_folder, draft],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("whose", ["new", "parent's"])
@pytest.mark.parametrize("mode", ["ar", "sd", "ssd", "auto"])
def test_a_child_decodes_the_same_tokens(mode, whose, tiny_folder, tmp_path):
    assert run(mode, whose, tiny_folder, tmp_path) == ""


def test_an_llm_at_work_at_the_fork_belongs_to_the_parent(tiny_folder, tmp_path):
    said = run("ar", "busy", tiny_folder, tmp_path)
    assert said == "LLM: belongs to the parent process, which forked while it was at work; make one here\n"
