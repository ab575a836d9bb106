"""The commands: a module each, with its `Options` and `run`; `words` reads them, `help` describes them.

The rooms of the package compute, `report` shows; here is what stands between them and the shell.
"""

NAMES = (
    *("compare", "calibrate", "failures", "cluster", "jobs", "replay", "export", "timeline", "draw"),
    *("traffic", "traces", "validate", "policies", "train", "evaluate", "sweep", "query", "report", "reproduce"),
    *("tune", "doctor", "show"),
)
OF_CASES = (  # their `run` takes cases, too
    *("show", "compare", "timeline", "export", "traffic", "failures", "sweep", "calibrate", "traces study"),
    *("cluster", "draw", "replay"),
)
