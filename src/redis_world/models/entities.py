"""The entities that events change: runs, steps, hooks and waits (contract, section 3)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field

from redis_world.models.base import Model, Payload, Timestamp

__all__ = [
    "Hook",
    "ResumeCapabilities",
    "ResumeContext",
    "Run",
    "RunStatus",
    "Step",
    "StepStatus",
    "Wait",
    "WaitStatus",
]

RunStatus: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled"]
StepStatus: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled"]
WaitStatus: TypeAlias = Literal["waiting", "completed"]


class Run(Model):
    """One execution of a workflow."""

    run_id: str
    deployment_id: str
    workflow_name: str
    spec_version: int
    status: RunStatus
    input: Payload = None
    output: Payload = None
    error: Payload = None
    error_code: str | None = None
    execution_context: dict[str, Any] | None = None
    attributes: dict[str, str] = Field(default_factory=dict)
    encryption_public_key: str | None = None
    created_at: Timestamp
    started_at: Timestamp | None = None
    completed_at: Timestamp | None = None
    updated_at: Timestamp
    expired_at: Timestamp | None = None


class Step(Model):
    """One step of a run. `step_id` is the correlation id of its events."""

    run_id: str
    step_id: str
    step_name: str
    status: StepStatus
    input: Payload = None
    output: Payload = None
    error: Payload = None
    attempt: int
    """How many attempts have started."""
    created_at: Timestamp
    started_at: Timestamp | None = None
    completed_at: Timestamp | None = None
    updated_at: Timestamp
    retry_after: Timestamp | None = None
    spec_version: int


class ResumeContext(Model):
    """Fields of the run that the hook copies, so that a resume needs no second look-up."""

    deployment_id: str
    workflow_name: str
    run_spec_version: int
    workflow_core_version: str | None = None
    trace_carrier: dict[str, str] | None = None
    encryption_public_key: str | None = None
    hook_resume_input_version: int | None = None


class ResumeCapabilities(Model):
    """The features of this World for resumes; only in answers to look-ups by token."""

    hook_resume_dedup_version: int


class Hook(Model):
    """A live hook. `hook_id` is the correlation id of its events."""

    run_id: str
    hook_id: str
    token: str = Field(repr=False)
    """A secret: everyone who has it can resume the hook. The model's repr leaves it out."""
    metadata: Payload = None
    owner_id: str = ""
    project_id: str = ""
    environment: str = ""
    created_at: Timestamp
    spec_version: int
    is_webhook: bool = False
    is_system: bool = False
    token_retention_until: Timestamp | None = None
    resume_context: ResumeContext | None = None
    resume_capabilities: ResumeCapabilities | None = None


class Wait(Model):
    """A durable sleep of a run. `wait_id` is `<run id>-<correlation id>`."""

    wait_id: str
    run_id: str
    status: WaitStatus
    resume_at: Timestamp
    completed_at: Timestamp | None = None
    created_at: Timestamp
    updated_at: Timestamp
    spec_version: int
