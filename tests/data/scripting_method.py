"""A method that a made-up extension adds to studies."""

import ringlight as rl


def shout(study: rl.Study, mark: str) -> str:
    """Return the study's name with a mark."""
    return study.name + mark
