"""What rivals.py needs of torch in its own process: compiled steps, and a ViT that torch itself exports to ONNX."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ParityError
from pluto_edge.runtime.engine.session import Graph
from pluto_edge.store import Store
from pluto_edge.tolerances import LOGITS_FP32, relative_error
from pluto_edge.vit.torch_vit import TorchViT
from tests.reference.torch_pluto import ReliableOnly, TorchPluto

OPSET = 20


class PlainViT(nn.Module):
    """Blocks, norm and head as timm runs them, with every weight its own: no module can be plugged in.

    It takes embedded tokens, with the prompt among them where modules have one: as many as a module's forward has.
    """

    def __init__(self, vit: TorchViT, head: tuple[Tensor, Tensor], prompts: int) -> None:
        super().__init__()
        self.vit = vit.vit
        self.layout = vit.layout
        self.head = head
        self.first_patch = vit.layout.prefix + prompts

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.vit.norm(self.vit.blocks(tokens))
        average = self.layout.pool == "average"
        x = (x[:, self.first_patch :] if average else x[:, : self.layout.pooled]).mean(dim=1)
        return F.linear(self.vit.fc_norm(x), *self.head)


def plain_vit(pluto: TorchPluto, tokens: Tensor) -> tuple[PlainViT, Tensor]:
    """The ViT with the first module's head, and what it takes: `tokens` with that module's prompt put in."""
    module = pluto.modules[pluto.names[0]]
    prefix = pluto.vit.layout.prefix
    prompt = module["prompt"] if "prompt" in module else tokens[0, :0]
    prompts = prompt.expand(len(tokens), -1, -1)
    vit = PlainViT(pluto.vit, (module["head_weight"], module["head_bias"]), len(prompt))
    return vit.eval(), torch.cat([tokens[:, :prefix], prompts, tokens[:, prefix:]], dim=1)


def export_plain(vit: PlainViT, tokens: Tensor, file: Path) -> None:
    """By torch's own exporter, with a free batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about its own parts
        torch.onnx.export(
            vit,
            (tokens[:2],),
            file,
            dynamo=True,
            opset_version=OPSET,
            input_names=["tokens"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=True,
            verbose=False,
        )


def check_plain(vit: PlainViT, graph: Graph, tokens: Tensor, of: object) -> None:
    """The exported graph says what the ViT says."""
    with torch.no_grad():
        want = vit(tokens).numpy()
    error = relative_error(graph({"tokens": of})["logits"].numpy(), want)
    if error > LOGITS_FP32:
        raise ParityError(f"torch's export of the plain ViT is off by {error:.1e}, tolerance {LOGITS_FP32:.0e}")


def compiled(store: Store, config: AdaptConfig) -> TorchPluto:
    """Steps whose forward passes and gradients go through torch.compile, which works at the first call."""
    pluto = ReliableOnly(store, config)
    pluto.vit.logits = torch.compile(pluto.vit.logits, dynamic=False)  # type: ignore[method-assign]
    return pluto


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """A TimeoutError in the block once it has taken this long (main thread only)."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"not ready after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
