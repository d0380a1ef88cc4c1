"""What the tests of the simulator share."""

from ssd.simulate.__main__ import main
from ssd.simulate.outcomes import Outcomes, from_rates

K = 5


class Fixed:
    """Times of passes that are the same whatever a pass holds."""

    def __init__(self, verify, draft):
        self.seconds = verify, draft

    def verify(self, sequences, rows):
        return self.seconds[0]

    def draft(self, sequences, rows):
        return self.seconds[1]


def sure(accept: float, hit: float, k: int = K) -> Outcomes:
    return from_rates([accept], hit, k)


def call(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
