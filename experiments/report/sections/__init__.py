"""The parts of a report, each with its figures. See ``experiments.report.report``."""
