"""A store to a bundle: ONNX graphs whose module-specific tensors are inputs. Needs torch, timm and onnx.

    from pluto_edge import export

    report = export("store/", "bundle/", precision="int8")

Calling the package is calling `pluto_edge.export.exporter.run_export`, which explains its arguments.
"""

from pluto_edge._callable import make_callable

make_callable(__name__, "exporter:run_export")
