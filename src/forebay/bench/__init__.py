"""The benchmarks: `forebay bench s3|mlperf|checkpoint|compare`.

They stand beside the store and the library: a benchmark talks to a store over the wire, as any client, and imports
nothing of `engine`, `drive` or `server`. One harness (`crew`, `seat`, `limits`, `figures`, `store`) and one report
(`result`, `terminal`, `page`) serve all of them. `app` is the typer application that the command line mounts.
"""

from forebay.bench.commands import app as app
