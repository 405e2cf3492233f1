"""An experiment emulated and simulated, side by side: how far apart, which is off, and why."""
