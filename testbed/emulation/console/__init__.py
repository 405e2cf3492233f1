"""Hands in a lab that runs: its nodes as Mininet knows them, the prompt, pings, captures."""
