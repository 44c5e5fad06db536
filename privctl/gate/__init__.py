"""The gate: checks reports against a policy, so that a build stops if its model is not safe enough."""

import privctl

privctl.make_callable(__name__)  # privctl.gate(...)
