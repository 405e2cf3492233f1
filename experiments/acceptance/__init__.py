"""The page of accepted optical switches."""
