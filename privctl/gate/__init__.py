"""The gate: checks reports against a policy, so that a build stops if its model is not safe enough."""

from privctl.callable_package import make_callable

make_callable(__name__)  # privctl.gate(...)
