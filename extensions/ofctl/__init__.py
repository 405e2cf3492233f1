"""The paths of Ryu's ``ofctl_rest`` on the controller's REST API, for scripts that were written for Ryu."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="ofctl", controller=("routes:add",))
