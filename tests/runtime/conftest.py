"""The tokens that tests of speculation compare with."""

import pytest
from speculation_helpers import answers

from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM


@pytest.fixture(scope="module")
def plain(tiny_folder, tiny_target):
    return answers(LLM.from_model(tiny_target, Tokenizer(tiny_folder), seed=3, threads=1))
