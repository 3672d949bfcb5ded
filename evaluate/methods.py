"""The methods by name, and `name:field=value,...` for other settings than the defaults."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pluto_edge._text import did_you_mean
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate import norms
from pluto_edge.evaluate.adapters import Adapter, Bench, CottaConfig, Neo, NoConfig, Single, gives_features
from pluto_edge.evaluate.features import Lame, LameConfig, T3a, T3aConfig
from pluto_edge.evaluate.pluto import Pluto, ZeroShot

Make = Callable[[Bench, str, Any], Adapter]


@dataclass(frozen=True)
class Method:
    """A method with its settings.

    Attributes:
        name: as it is asked for, and as it stands in the tables.
        make: an adapter from a bench, a module's name and `config`.
        config: its settings, a dataclass.
        per_module: it adapts one module, is run for each, and reported as best, worst and ensembles.
        cost: passes through the network an image and module, roughly: for the time that is left.
        torch: it runs in torch, and needs the store.
        features: it looks at what the modules' heads see.
        uses_sources: it learns something of the modules' own domains first, where their images are given.
    """

    name: str
    make: Make
    config: Any
    per_module: bool = True
    cost: float = 0.01
    torch: bool = False
    features: bool = False
    uses_sources: bool = False

    @property
    def probe_cost(self) -> float:
        """The same for a prediction that learns nothing."""
        return min(self.cost, 1.0)

    def missing(self, bench: Bench) -> str:
        """Why it cannot run here, or nothing."""
        if self.features and not gives_features():
            return "it looks at the features that the head sees, and the graphs give logits only"
        if not self.torch:
            return ""
        if importlib.util.find_spec("torch") is None or importlib.util.find_spec("timm") is None:
            return 'it runs in torch; pip install "pluto-edge[export]"'
        return "" if bench.store is not None else "it changes the backbone; give the store with --store"


def _cotta(bench: Bench, module: str, config: CottaConfig) -> Adapter:
    from pluto_edge.evaluate.cotta import Cotta  # torch

    return Cotta(bench, module, config)


# the fields in which the paper's configuration differs; its rate is the default's, whatever a bundle carries
PAPER: Mapping[str, object] = {
    **{k: v for k, v in vars(AdaptConfig.paper()).items() if v != getattr(AdaptConfig(), k)},
    "ln_lr": None,
}

# PLUTO with parts switched off; in the paper's ablation "selection" is paper-selection, "+ SA" is paper-no-filter,
# and "+ filter" is paper-rho-0
PLUTO_PARTS: Mapping[str, Mapping[str, object]] = {
    "pluto-paper": PAPER,
    "pluto-joint": {"weighting": "generalist"},
    "pluto-no-evidence": {"weighting": "selector"},
    "pluto-no-prototypes": {"prototypes": False},
    "pluto-no-continuity": {"continuity": False},
    "pluto-no-step": {"sam": None},
    "pluto-entropy": {"objective": "entropy"},
    "pluto-both": {"objective": "both"},
    "pluto-align": {"objective": "align"},
    "pluto-top-1": {"top_m": 1},
    "pluto-paper-selection": {**PAPER, "sam": None},
    "pluto-paper-no-filter": {**PAPER, "filter": False},
    "pluto-paper-rho-0": {**PAPER, "rho": 0.0},
}


def known(adaptation: AdaptConfig) -> dict[str, Method]:
    """Every method with its defaults; PLUTO's are those that the bundle carries."""
    found = [
        Method("single", Single, NoConfig()),
        Method("neo", Neo, NoConfig()),
        Method("t3a", T3a, T3aConfig(), features=True),
        Method("lame", Lame, LameConfig(), features=True),
        Method("tent", norms.Tent, norms.TentConfig(), cost=3),
        Method("eata", norms.Eata, norms.EataConfig(), cost=3, uses_sources=True),
        Method("sar", norms.Sar, norms.SarConfig(), cost=5),
        Method("foa", norms.Foa, norms.FoaConfig(), cost=4),
        Method("cotta", _cotta, CottaConfig(), cost=40, torch=True),
        Method("zero-shot", ZeroShot, adaptation, per_module=False),
        Method("pluto", Pluto, adaptation, per_module=False, cost=5),
    ]
    for name, changes in PLUTO_PARTS.items():
        config = replace(adaptation, **changes)  # type: ignore[arg-type]
        found.append(Method(name, Pluto, config, per_module=False, cost=5 if config.sam else 0.05))
    return {method.name: method for method in found}


def choose(names: Sequence[str], adaptation: AdaptConfig) -> tuple[Method, ...]:
    """The methods that were asked for, all where `names` is empty."""
    there = known(adaptation)
    if len(set(names)) < len(names):
        raise ConfigError(f"--method: {', '.join(names)}: a method is there twice")
    return tuple(_parse(name, there) for name in names or there)


def _parse(text: str, there: Mapping[str, Method]) -> Method:
    name, _, settings = text.partition(":")
    if name not in there:
        hint = did_you_mean(name, there)
        raise ConfigError(f"--method: no method {name!r}; there are: {', '.join(there)}{hint}")
    method = there[name]
    changes = {}
    allowed = [f.name for f in fields(method.config)]
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in allowed:
            hint = did_you_mean(key, allowed)
            has = ", ".join(allowed) or "none"
            raise ConfigError(f"--method {text}: no setting {key!r}; {name} has: {has}{hint}")
        changes[key] = _value(value, getattr(method.config, key))
    config = replace(method.config, **changes)
    return replace(method, name=text, config=config)


def _value(text: str, default: object) -> object:
    """JSON where it is (0.1, 5, true, null), else the text itself; a whole number serves as a real one."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return float(value) if isinstance(default, float) and type(value) is int else value
