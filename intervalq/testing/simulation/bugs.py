"""All planted bugs: what the judges must find."""

from intervalq.testing.simulation import (
    bugs_found,
    bugs_from_promises,
    bugs_in_rules,
    bugs_in_shards,
    bugs_of_slips,
)
from intervalq.testing.simulation.planting import BUGS, Bug, planted

__all__ = [
    "BUGS",
    "Bug",
    "bugs_found",
    "bugs_from_promises",
    "bugs_in_rules",
    "bugs_in_shards",
    "bugs_of_slips",
    "planted",
]
