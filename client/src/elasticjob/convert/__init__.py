"""Converts jobs of other operators to ElasticJobs. Pure functions over data: no file, no cluster.

Each kind has a module with a table of its fields. `table.account` makes sure that every leaf of the input is carried
over, irrelevant with a reason, or reported.
"""

from elasticjob.convert.conversion import Converted, convert_all
from elasticjob.convert.table import ConvertError, Note, Outcome
from elasticjob.decisions.documents import dump, parse

__all__ = ["ConvertError", "Converted", "Note", "Outcome", "convert_all", "dump", "parse"]
