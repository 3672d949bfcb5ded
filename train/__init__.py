"""Labelled images to a store: a module for every domain, a generalist and a selector. Needs torch and timm.

    from pluto_edge import train

    report = train("photos/", "store/", backbone="vit_small_patch16_224", pretrained="augreg_in21k")

Calling the package is calling `pluto_edge.train.api.train`, which explains its arguments.
"""

from pluto_edge._callable import make_callable

make_callable(__name__, "api:train")
