"""The rigs of drivers that are not SCPI's."""
