"""Names as people type them."""

from __future__ import annotations

import difflib


def collective_of(text: str) -> str:
    """Reads "AllReduce", "all-reduce" and "all_reduce_perf" as all_reduce. ValueError suggests what a slip meant."""
    from theseus_py.perf.collectives import COLLECTIVES

    known = {_plain(name): name for name in COLLECTIVES}
    plain = _plain(text)
    if plain in known:
        return known[plain]
    close = difflib.get_close_matches(plain, known, 1)
    hint = f"did you mean {known[close[0]]}?" if close else f"choose one of {', '.join(COLLECTIVES)}"
    raise ValueError(f"unknown collective '{text}': {hint}")


def _plain(name: str) -> str:
    return name.lower().removesuffix("_perf").replace("_", "").replace("-", "")
