"""One module for each judge, with an object ``JUDGE`` (:mod:`ringlight.extensions.judge.contract`)."""
