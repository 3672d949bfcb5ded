"""Module folders from anywhere: `adapter_config.json` and `adapter_model.safetensors`.

Must happen: a `StoreError` or `BundleError`; or a module that takes part. Then what the runtime says is finite, and
is what it said before once the module is gone again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load_file

from attacks.harness import Case, Escape, Parser
from attacks.mutate import mutate_file, mutate_json, mutate_tensors, to_safetensors
from attacks.world import STORE, check_prediction, frames, runtime
from pluto_edge.store import MODULE_FILE, read_module, read_module_config

NAME = "newcomer"
TAKEN = 0.1  # of the modules that can be read: it costs as much as a hundred that cannot


@contextmanager
def parser(place: Path) -> Iterator[Parser]:
    """Of tensors; the description stays."""
    folder, config, model = _newcomer(place)
    (folder / "adapter_config.json").write_bytes(config)

    def parse(data: bytes) -> None:
        (folder / MODULE_FILE).write_bytes(data)
        read_module(folder, read_module_config(folder))

    yield Parser(parse, [model])


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that add a module whose files were changed."""
    folder, config, model = _newcomer(place)
    tensors = load_file(STORE / "modules/fog" / MODULE_FILE)
    with _taker(folder) as take:

        def case(rng: Random) -> None:
            description = config
            data = model
            kind = rng.randrange(8)
            if kind < 3:
                description = mutate_json(rng, config)
            elif kind < 7:
                data = mutate_file(rng, model)
            else:
                data = to_safetensors(mutate_tensors(rng, tensors))
            (folder / "adapter_config.json").write_bytes(description)
            (folder / MODULE_FILE).write_bytes(data)
            read_module(folder, read_module_config(folder))
            if rng.random() < TAKEN:
                take()

        yield case


def _newcomer(place: Path) -> tuple[Path, bytes, bytes]:
    """An empty folder, and the files of a good module of another name."""
    source = STORE / "modules/fog"
    folder = place / NAME
    folder.mkdir()
    config = (source / "adapter_config.json").read_text().replace('"name": "fog"', f'"name": "{NAME}"')
    return folder, config.encode(), (source / MODULE_FILE).read_bytes()


@contextmanager
def _taker(folder: Path) -> Iterator[Callable[[], None]]:
    """Adds what is in the folder to a runtime, predicts, and takes it out again."""
    with runtime() as opened:
        image = frames()[:1]
        before = opened.predict(image).probabilities

        def take() -> None:
            name = opened.add_module(folder)
            try:
                check_prediction(opened.predict(image), 1)
            finally:
                opened.remove_module(name)
            if not np.array_equal(opened.predict(image).probabilities, before):
                raise Escape("another prediction than before the module came and went")

        yield take
