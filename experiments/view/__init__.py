"""The page in which one watches the light of a lab, and of a run folder."""
