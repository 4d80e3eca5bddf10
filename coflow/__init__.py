"""Telling a coflow scheduler what a transfer is about to move and how far it is: docs/reference/coflow-protocol.md.

Standard library alone: applications, the filesystem's client and the controller import it; it imports none of them.
"""

from speedwell.coflow.errors import CoflowError, InvalidReport, InvalidSetting
from speedwell.coflow.report import Flow, FlowReport, Report, decode, encode
from speedwell.coflow.reporter import Reporter, configured_reporter

__all__ = ["CoflowError", "Flow", "FlowReport", "InvalidReport", "InvalidSetting", "Report", "Reporter",
           "configured_reporter", "decode", "encode"]
