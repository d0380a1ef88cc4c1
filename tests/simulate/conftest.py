"""A fixture with the constants that are fitted to all published speeds."""

import pytest

from ssd.simulate.fit import fit


@pytest.fixture(scope="session")
def fitted():
    return fit()
