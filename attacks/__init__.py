"""Runnable attacks on pluto-edge, one file each: everyone can try to break it.

    python -m attacks --minutes 30                  # all of them, then a table of cases and escapes
    python -m attacks --only states --minutes 5     # one
    python -m attacks --only states --seed 1234     # one case of it again, with its traceback

An attack file has a function `attack(place)`, a context manager that sets up what is attacked in the folder `place`
and gives a *case*: a function of a `random.Random` that does one hostile thing. A case that returns was harmless,
one that raises a `PlutoError` was refused. Anything else is an *escape*: another exception (an attack raises
`Escape` for what raises nothing by itself, such as lost data or a prediction that is not finite), a crash, and a
case that takes longer than the attack's `SECONDS`. Everything in a case comes from its `random.Random`, so that its
seed does the same again.

Those in `catalogue/` are The Update Framework's: a device, and the repository that it follows turned hostile
(`hostile_repository.py`). `TRIES` in each has what it tries, by name. Their cases tell a story, of which one for
everything that was tried is printed: what the device did, and what it said. They need
`pip install "pluto-edge[fleet]"`.

Files that attack a parser have `parser(place)`, too: what parses, and samples to start from. Where atheris is
installed (`pip install atheris`; 3.0.0 was tried on Python 3.11) half of their time goes into inputs that it finds,
guided by the branches that they reach.
"""

CATALOGUE = (  # the files of that folder that attack
    "arbitrary_installation",
    "endless_data",
    "fast_forward",
    "freeze",
    "key_compromise",
    "mirror",
    "mix_and_match",
    "rollback",
    "slow_retrieval",
    "wrong_blobs",
)
ATTACKS = tuple(
    sorted(
        (
            *CATALOGUE,
            "bundles",
            "callbacks",
            "files",
            "images",
            "manifests",
            "modules",
            "page",
            "recordings",
            "states",
            "stores",
            "threads",
        )
    )
)
