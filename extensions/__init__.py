"""Extensions of Ringlight: a folder each, which can be deleted (:mod:`ringlight.fabric.extension`)."""
