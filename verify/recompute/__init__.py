"""Every bound again from its definition, with certified ends, by other routes than the accounting that claimed it.

Written a second time on purpose: code shared with ``privctl.accounting`` would confirm its own faults.
"""
