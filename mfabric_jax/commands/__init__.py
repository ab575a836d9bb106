"""The commands: a module each, with its `Options`, typed for tyro to turn into flags and help, and `run`.

`study` computes, `report` shows; here is what stands between them and the shell.
"""

NAMES = (
    *("compare", "calibrate", "failures", "cluster", "jobs", "replay", "export", "timeline", "draw"),
    *("traffic", "traces", "validate", "policies", "train", "evaluate", "sweep", "query", "report", "reproduce"),
    *("tune", "doctor"),
)
