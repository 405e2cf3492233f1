"""The documentation as a site: the pages of the repository, a gallery of examples, and the reference.

    .venv/bin/python -m docs.site [OUT]      # writes it to build/site; needs ringlight[docs], no network

Sphinx with MyST and the PyData theme makes it. ``contents.md`` beside this file is its navigation.
"""
