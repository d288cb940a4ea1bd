# SPDX-License-Identifier: Apache-2.0

"""The steps of ``topodns doctor``: one code for each, why it matters and what to do, and what was found.

Codes are stable, so that scripts need not parse messages. ``make docs`` generates ``docs/doctor.md`` from this table.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeVar

from msgspec import Struct

from locator.findings import documentation, prose_of

T = TypeVar("T")

PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"


class StepCode(Enum):
    """A step, in the order of the walk. The name of the member is the code."""

    ApiServerReachable = auto()
    NodesReady = auto()
    NodesHaveZones = auto()
    NodeLocalForwards = auto()
    ForwarderForwards = auto()
    DeploymentExists = auto()
    SettingsValid = auto()
    ImageVersion = auto()
    PodsCreated = auto()
    ReplicasReady = auto()
    ServiceLeadsHere = auto()
    RightsGranted = auto()
    ResourcesCurrent = auto()
    ReplicaSynced = auto()
    ReplicaFresh = auto()
    ReplicaVersion = auto()
    ForwardersTrusted = auto()
    ForwardersNameClients = auto()
    ClientsLocated = auto()
    AnswersNear = auto()
    NoErrorsFound = auto()
    ReplicaAnswers = auto()
    ForwarderAnswers = auto()

    @property
    def title(self) -> str:
        """What the step looks at."""
        return prose_of(StepCode)[self.name]["title"]

    @property
    def why(self) -> str:
        """Why that matters, in Markdown."""
        return prose_of(StepCode)[self.name]["why"]

    @property
    def fix(self) -> str:
        """What to do if the step fails, in Markdown."""
        return prose_of(StepCode)[self.name]["fix"]

    @property
    def documentation(self) -> str:
        """The address of what is written about the step."""
        return documentation(self.name, "doctor")

    def passed(self, message: str, subject: str = "") -> DoctorStep:
        """Return a step that found no fault."""
        return DoctorStep(self, PASSED, message, subject)

    def failed(
        self, message: str, subject: str = "", commands: tuple[str, ...] = (), advice: str = "", difference: str = ""
    ) -> DoctorStep:
        """Return a step that found a fault."""
        return DoctorStep(self, FAILED, message, subject, commands, advice, difference)

    def unknown(self, message: str, subject: str = "", commands: tuple[str, ...] = (), advice: str = "") -> DoctorStep:
        """Return a step that could not be looked at."""
        return DoctorStep(self, UNKNOWN, message, subject, commands, advice)

    def unread(self, unread: Unread, subject: str = "") -> DoctorStep:
        """Return a step that could not be looked at since something could not be read."""
        return self.unknown(unread.why, subject, unread.commands)


class DoctorStep(Struct, frozen=True):
    """What was found at one step. ``subject`` is the object that it is about, where a step has several.

    ``status`` is PASSED, FAILED, or UNKNOWN if it could not be looked at; ``message`` then says why. ``commands`` fix
    a step that failed, in this order; ``advice`` says more than the fix of its code, if it is not empty.
    ``difference`` is what the commands change in a text, as ``diff -u`` shows it.
    """

    code: StepCode
    status: str
    message: str
    subject: str = ""
    commands: tuple[str, ...] = ()
    advice: str = ""
    difference: str = ""


class Unread(Struct, frozen=True):
    """Something that could not be read, and why: it names the permission that lacks, if one does."""

    why: str
    commands: tuple[str, ...] = ()


def read_or(value: T | Unread, otherwise: T) -> T:
    """Return what was read, or *otherwise* if it could not be read."""
    return otherwise if isinstance(value, Unread) else value


def as_json(step: DoctorStep) -> dict[str, object]:
    """Return a step as ``doctor -o json`` prints it; what fixes it is left out of a step that passed."""
    passed = step.status == PASSED
    return {
        "code": step.code.name,
        "title": step.code.title,
        "subject": step.subject,
        "status": step.status,
        "message": step.message,
        "why": step.code.why,
        "cure": "" if passed else step.advice or step.code.fix,
        "difference": "" if passed else step.difference,
        "commands": [] if passed else list(step.commands),
        "documentation": step.code.documentation,
    }
