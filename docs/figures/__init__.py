"""Makes the tables and pictures of README.md and docs/ from run folders, with machine and commit.

    python -m docs.figures RUN [RUN ...]      blocks whose runs are given are written, others stay
    python -m docs.figures --check [RUN ...]  nothing is written; names the blocks that these runs do not make

A block is what stands between ``<!-- figures: NAME -->`` and ``<!-- end -->``. What is in it is data, in a
module for each subject: of which scenario, arms and metrics each cell is. A run counts only where its
scenario file is today's.
"""
