"""The ways of serving one prompt that are compared.

Every way has the same prompt, cut into the same segments, and the same model. A way says which
seams are recomputed and in what form segments' states are stored. The two deliberately wrong ways
also say how states are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FULL = "full"
PREFIX = "prefix"


@dataclass(frozen=True)
class Variant:
    """One way. seam: the window w in tokens; None: nothing is spliced. tail: the window on the left
    side of a join, if it differs.

    stored: the type or form (see `forms.py`) in which transitions and end-states are stored.
    states: the form of end-states, if it differs. A transition whose spectral norm is at most tau
    is stored as zero. "packed" is the form that the daemon chooses for each head at tolerance tau.
    summed: states are joined by addition, as if every transition were the identity. whole: T and S
    of all of a segment's tokens are used, and its ends are recomputed as well, so that the ends
    enter the state twice. bare: T and S of all tokens are used, and only the question is computed.
    every: only every n-th question is asked, because variations of a way need fewer questions.
    cuts: where segments meet, see `places.py`. row_tau: keys and values are stored as the daemon
    stores them at this row tolerance; 0: unchanged.
    """

    name: str
    seam: int | None = None
    tail: int | None = None
    stored: str = "float32"
    states: str = ""
    tau: float = 0.0
    summed: bool = False
    whole: bool = False
    bare: bool = False
    every: int = 1
    cuts: str = "notes"
    row_tau: float = 0.0


SPLICED = "spliced w=8"
TOLERANCES = (0.005, 0.02)
VARIANTS = (
    Variant(FULL),
    Variant(PREFIX),
    Variant(SPLICED, seam=8),
    Variant("whole tuples, edges again", seam=8, whole=True),
    Variant("naive addition", summed=True, bare=True),
    Variant("states added up, seams", seam=8, summed=True),
    *(Variant(f"spliced w={w}", seam=w, every=8) for w in (0, 4, 16, 32)),
    Variant("spliced w=8, T and S in fp16", seam=8, stored="float16", every=8),
    Variant("spliced w=8, T and S in bf16", seam=8, stored="bfloat16", every=8),
)
PLACES = (
    Variant(FULL),
    Variant(SPLICED, seam=8),
    Variant("at ends of sentences", seam=8, cuts="sentences"),
    Variant("every 64 tokens", seam=8, cuts="even"),
    Variant("in the middle of notes", seam=8, cuts="moved"),
)
"""The same splice with its cuts at other places, for `measure.py --places`."""
WINDOWS = (0, 4, 8, 16, 32)


def seams(windows: Sequence[int] = WINDOWS) -> tuple[Variant, ...]:
    """Returns the same splice with other seams, for `measure.py --seams`."""
    return (
        Variant(FULL),
        *(Variant(f"spliced w={w}", seam=w) for w in windows),
        Variant("w=8, beginnings only", seam=8, tail=0),
        Variant("w=8, ends only", seam=0, tail=8),
    )


KEYS = (
    Variant(FULL),
    Variant(SPLICED, seam=8),
    Variant("T, S", seam=8, stored="packed", tau=TOLERANCES[-1]),
    Variant("K, V", seam=8, row_tau=TOLERANCES[-1]),
    Variant("T, S, K, V", seam=8, stored="packed", tau=TOLERANCES[-1], row_tau=TOLERANCES[-1]),
)
"""The same splice with different parts of its segments packed, for `measure.py --keys`."""
ROWS = "rows of k, v, beta and decay"
"""Rows from which T and S can be computed. Storing rows instead of T and S is exact, so only their
bytes are compared."""
PACKED = f"packed, tolerance {TOLERANCES[-1]}"
FORMS = (
    Variant(FULL),
    Variant(SPLICED, seam=8),
    Variant("T in fp16, S in fp32", seam=8, stored="float16", states="float32"),
    *(Variant(form, seam=8, stored=form, every=7) for form in ("int8", "fp8", "int6", "int4")),
    Variant(
        f"packed, tolerance {TOLERANCES[0]}", seam=8, stored="packed", tau=TOLERANCES[0], every=7
    ),
    Variant(PACKED, seam=8, stored="packed", tau=TOLERANCES[-1]),
    Variant(f"{PACKED}, no low rank", seam=8, stored="whole", tau=TOLERANCES[-1], every=7),
    Variant(f"{PACKED}, T of low rank too", seam=8, stored="ranked", tau=TOLERANCES[-1], every=7),
)
"""The same splice with its transitions and end-states in small forms, for `measure.py --forms`."""
