"""Measurements that take no time."""

import pytest

from pluto_edge.bench import bench, machine


def calm(patch: pytest.MonkeyPatch) -> None:
    """Small matrices, few processes, and a machine that does nothing else."""
    patch.setattr(machine, "SIZES", (16,))
    patch.setattr(machine, "SECONDS", 0.0)
    patch.setattr(machine, "IDLE_SHARE", 0.0)
    patch.setattr(machine, "load_average", lambda: 0.0)
    patch.setattr(bench, "STARTS", 2)
