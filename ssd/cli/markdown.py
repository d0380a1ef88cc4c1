"""Markdown tables."""


def table(rows: list[dict], columns: list[str]) -> str:
    """The columns of the rows as a Markdown table; numbers to three digits."""
    cells = [[_cell(row.get(c)) for c in columns] for row in rows]
    width = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    lines = [columns, ["-" * w for w in width], *cells]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, width, strict=True)) + " |" for line in lines)


def _cell(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_cell(v)}" for k, v in value.items())
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)
