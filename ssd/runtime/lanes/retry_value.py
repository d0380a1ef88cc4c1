"""Whether waiting for the draft after a miss gives more tokens per second than going on without it."""

from ..moving_average import MovingAverage


class RetryValue:
    """Averages of what a pass, an answer of the draft after a miss, and such an answer's tokens were lately."""

    def __init__(self):
        self.pass_seconds = MovingAverage()
        self.answer = MovingAverage()  # seconds of an answer
        self.gain = MovingAverage(0.1)  # tokens of a round that verified one

    def pays(self) -> bool:
        """Whether to wait for an answer."""
        once = self.pass_seconds.get(0.02)
        return self.gain.get(2.0) / (once + self.answer.get(0.3 * once)) > 1 / once
