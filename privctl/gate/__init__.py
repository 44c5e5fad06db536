"""The gate: reports held against a policy, for a build that must not go on with a model that is not safe enough."""

from privctl import make_callable

make_callable(__name__)  # privctl.gate(...)
