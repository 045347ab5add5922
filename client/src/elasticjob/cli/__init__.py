"""The command line: flags in, text and an exit code out."""
