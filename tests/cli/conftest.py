"""The tiny target that the tests of the command line decode."""

import pytest
import tiny_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))
