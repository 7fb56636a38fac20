"""What mutations there are, and the settings that choose among them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from frognano.taskpilot.sources import name_operators, operators, statement_operators
from frognano.taskpilot.sources.operators import Operator

OPERATORS: dict[str, Operator] = {
    "comparison": operators.comparison,
    "boundary": operators.boundary,
    "arithmetic": operators.arithmetic,
    "boolean": operators.boolean,
    "negation": operators.negation,
    "constant": operators.constant,
    "off_by_one": operators.off_by_one,
    "augmented_assignment": operators.augmented_assignment,
    "swapped_arguments": name_operators.swapped_arguments,
    "wrong_name": name_operators.wrong_name,
    "wrong_attribute": name_operators.wrong_attribute,
    "wrong_function": name_operators.wrong_function,
    "unwrapped_call": name_operators.unwrapped_call,
    "dropped_statement": statement_operators.dropped_statement,
    "dropped_return": statement_operators.dropped_return,
    "inverted_condition": statement_operators.inverted_condition,
    "loop_control": statement_operators.loop_control,
}

# What kind of mistake it is, in words that do not tell the repair.
KINDS: dict[str, str] = {
    "comparison": "A comparison is wrong",
    "boundary": "A boundary is wrong",
    "arithmetic": "An arithmetic operator is wrong",
    "boolean": "A boolean operator is wrong",
    "negation": "A negation is wrong",
    "constant": "A constant is wrong",
    "off_by_one": "A number is off by one",
    "augmented_assignment": "An assignment operator is wrong",
    "swapped_arguments": "Arguments are in the wrong order",
    "wrong_name": "A wrong variable is used",
    "wrong_attribute": "A wrong attribute or method is used",
    "wrong_function": "A wrong function is called",
    "unwrapped_call": "A call is missing",
    "dropped_statement": "A statement is missing",
    "dropped_return": "The return value is wrong",
    "inverted_condition": "A condition is the wrong way round",
    "loop_control": "The loop is left the wrong way",
}


class MutationConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    operators: tuple[str, ...] = tuple(OPERATORS)
    min_function_lines: int = Field(2, ge=1, description="Lines of code, without docstring, comments and blank lines.")
    max_function_lines: int = Field(60, ge=1)
    max_line_length: int = Field(120, ge=1, description="Of the faulty and of the right line, with indentation.")
    unique_line: bool = Field(False, description="The faulty text occurs once in the file: an Edit can name it.")
    max_per_function: int = Field(6, ge=1)

    @field_validator("operators")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(names) - set(OPERATORS)):
            raise ValueError(f"unknown operators {unknown}, there are {sorted(OPERATORS)}")
        return names


POCKET = MutationConfig(
    min_function_lines=2, max_function_lines=12, max_line_length=88, unique_line=True, max_per_function=4
)
