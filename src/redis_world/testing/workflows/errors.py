"""What tests of workflows are told."""

from __future__ import annotations

__all__ = [
    "RunNotFinishedError",
    "StillRunningError",
    "UnknownWorkflowError",
    "WorkflowAppError",
]


class WorkflowAppError(Exception):
    """Base of the errors that a `WorkflowApp` itself raises."""


class RunNotFinishedError(WorkflowAppError):
    """The run has not ended, and nothing is due now; the text says what the run waits for.

    Attributes:
        run_id: the run.
    """

    def __init__(self, run_id: str, text: str) -> None:
        super().__init__(text)
        self.run_id = run_id


class UnknownWorkflowError(WorkflowAppError):
    """No registry of this process has the workflow or the step that a run asks for."""


class StillRunningError(WorkflowAppError):
    """A step or a replay has not ended within the time limit of the app, in real time."""
