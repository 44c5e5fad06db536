"""The gate: reports held against a policy, for a build that must not go on with a model that is not safe enough."""

import privctl

privctl.make_callable(__name__)  # privctl.gate(...)
