"""Checks that linters do not cover: the project's vocabulary, and whether the docs match the code.

`python -m hack.checks` runs all of them over the tracked files and prints a line for each problem, in a few seconds and
without a network. Each check is a function from text to problems, with a unit test that shows that it can fail.
"""
