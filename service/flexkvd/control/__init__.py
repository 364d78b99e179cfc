"""What the daemon says of itself and does for its operator: the seam between the REST API and the parts.

Owns answers as plain data, one module per noun; decides nothing. Called by `api` and `daemon`.
"""

from flexkvd.control.control import Operator

__all__ = ["Operator"]
