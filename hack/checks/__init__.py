"""Checks of what linters do not see: the project's words, and whether the docs say what is there.

`python -m hack.checks` runs all of them over the tracked files and prints a line for each problem. Pure Python, no
network, a few seconds. Each check is a function from text to problems, with a unit test that shows that it can fail.
"""
