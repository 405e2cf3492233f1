"""The page in which one watches light: of a lab that is up, and of runs that are over."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="page",
    commands="view_command:register",
    controller=("routes:add",),
    methods={"Runs.view": "notebook:view"},
    pages={"view.html": "page_kind:VIEW_PAGE"},
)
