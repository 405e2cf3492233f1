"""Facts of Acme's switches that fabric files need: the driver that they have, their times and losses."""

from ringlight.fabric.optical_drivers import DriverKind
from ringlight.fabric.optical_profiles import Profile

#: Invented, as the vendor is: between the classes `mems` and `piezo`.
PROFILE = Profile(
    "acme-p",
    command_s=0.008,
    command_per_xc_s=0.0005,
    dark_s=0.020,
    dark_jitter_s=0.004,
    retrain_s=0.010,
    loss_min_db=0.8,
    loss_typ_db=1.2,
    loss_max_db=2.0,
    repeatability_db=0.1,
)

DRIVER = DriverKind(
    "driver:AcmeDriver", products=("acme-p",), profile="acme-p", login=False,
    protocol="acme", emulated_by="emulated:PROTOCOL", rig="rig:AcmeRig")
