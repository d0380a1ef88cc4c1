"""An exponential moving average."""


class MovingAverage:
    """An exponential average of what was added.

    rate: weight of a new value. start: value to begin with; without one, the first value. worth: for how many values
    the start stands; while few were added, each of them weighs more than `rate`.
    """

    def __init__(self, rate: float = 0.1, start: float | None = None, worth: int = 0):
        self.rate, self.value, self.worth = rate, start, worth

    def add(self, x: float) -> None:
        rate = self.rate
        if self.worth:
            self.worth += 1
            rate = max(rate, 1 / self.worth)
        self.value = x if self.value is None else self.value + rate * (x - self.value)

    def get(self, default: float) -> float:
        return default if self.value is None else self.value
