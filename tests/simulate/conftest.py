"""The constants that are fitted on all published speeds."""

import pytest

from ssd.simulate.fit import fit


@pytest.fixture(scope="module")
def fitted():
    return fit()
