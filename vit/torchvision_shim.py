"""Let timm import next to a CPU build of torch.

timm imports torchvision, whose wheels are CUDA builds: beside a CPU build of torch they raise «operator
torchvision::nms does not exist» while they register shape functions. Declaring the two schemas first is
enough for everything that is used here (models and PIL transforms; never the detection operators).
Import this module before timm.
"""

import importlib.util

import torch

_library: torch.library.Library | None = None

if importlib.util.find_spec("torchvision") is not None and not torch.cuda.is_available():
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
