"""What schemathesis is told of the API beyond its description; loaded by the fuzzer's own process."""

from typing import Any

import schemathesis

CONFIGURATION = "/v1/config"


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Keep two kinds of change of the configuration out.

    A lower rate would have everything after it answered 429. And a size may be given as text ("64MiB"), whose range no
    schema can say: those are whole numbers here, and text is tested by hand.
    """
    if case.path != CONFIGURATION or not isinstance(case.body, dict):
        return
    for table in case.body.values():
        if isinstance(table, dict):
            for key in [key for key, value in table.items() if key == "requests_per_s_max" or _is_size(key, value)]:
                del table[key]


def _is_size(key: str, value: Any) -> bool:
    return key.endswith(("bytes_max", "bytes_per_day")) and isinstance(value, str)
