"""Methods compared on a bundle and labelled images. Needs ONNX Runtime; torch for CoTTA and `leave_out` only.

    from pluto_edge import evaluate

    report = evaluate("bundle/", "photos/", target=["night"])
    print(report.verdict)

Calling the package is calling `pluto_edge.evaluate.api.evaluate`, which explains its arguments.
"""

from pluto_edge._callable import make_callable

make_callable(__name__, "api:evaluate")
