"""What is passed on: Task, Trajectory, Verdict and Sample, pure data that checks itself."""

from frognano.records.sample import Sample
from frognano.records.task import Environment, Lineage, Origin, PolicyEvaluation, Statement, Task, Validation
from frognano.records.trajectory import (
    ExitReason,
    Message,
    Segment,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryBuilder,
    Turn,
)
from frognano.records.verdict import Outcome, Status, Verdict

__all__ = [
    "Environment",
    "ExitReason",
    "Lineage",
    "Message",
    "Origin",
    "Outcome",
    "PolicyEvaluation",
    "Sample",
    "Segment",
    "Statement",
    "Status",
    "Task",
    "ToolCall",
    "ToolResult",
    "Trajectory",
    "TrajectoryBuilder",
    "Turn",
    "Validation",
    "Verdict",
]
