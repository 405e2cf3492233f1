"""Programs for a solver, closed forms and algorithms that the product is held against, and does not use."""
