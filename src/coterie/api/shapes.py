"""What every operation's parameters and answers are made of. RPC writes them in snake_case, HTTP in camelCase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError

from coterie.core.agent import Text
from coterie.core.errors import BY_CODE, InvalidRequest
from coterie.core.text import storable
from coterie.core.wire import Wire

P = TypeVar("P", bound=BaseModel)


def _no_other_type(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("must be a number")
    return value


Flag = Annotated[bool, Strict()]
"""Neither 0 nor "yes" is one: the document says boolean."""
NUMBER = BeforeValidator(_no_other_type)
"""Beside a number's bounds: neither true nor "5" is one. 5.0 is an integer, as in JSON Schema."""

AgentId = Annotated[
    Text, Field(max_length=200, description="An agent's id; `default` is whoever is the default now.")
]
SessionName = Annotated[str, Field(max_length=1000, description="A session's id or its key.")]
RunId = Annotated[Text, Field(min_length=1, max_length=200, description="A run's id.")]
ShortText = Annotated[Text, Field(max_length=2000)]
Name = Annotated[str, AfterValidator(storable), Field(max_length=1000)]
Seq = Annotated[int, Field(ge=0, le=2**31 - 1), NUMBER]


class Shape(Wire):
    """A value in parameters or answers; its validator is built when first used, as most never are."""

    model_config = ConfigDict(defer_build=True)


class Params(Shape):
    """Parameters of an operation."""

    HEADERS: ClassVar[dict[str, str]] = {}
    """Headers of an HTTP request that are parameters."""


class Change(Params):
    """Parameters of an operation that changes something."""

    HEADERS = {"Idempotency-Key": "idempotency_key"}

    idempotency_key: Annotated[Text, Field(min_length=1, max_length=200)] | None = Field(
        None, description="A repeat with the same key returns the first answer."
    )


class Nothing(Params):
    pass


class SessionParam(Params):
    session: SessionName


class SessionChange(Change):
    session: SessionName


class Answer(Shape):
    """What an operation gives back."""

    @classmethod
    def of(cls, value: object, **more: Any) -> Self:
        """With what the value has under the names of our fields, and these."""
        same = {name: getattr(value, name) for name in cls.model_fields if name not in more}
        return cls(**same, **more)


class ErrorBody(Answer):
    code: str = Field(json_schema_extra={"enum": list(BY_CODE)})
    message: str
    details: dict[str, Any] | None = None
    retryable: bool | None = None


class Error(Answer):
    error: ErrorBody


def _spelled(model: Any, place: Sequence[int | str], *, camel: bool) -> list[str]:
    """Where something is wrong, as the caller's door spells fields; what is no field of ours stays as it was given."""
    words: list[str] = []
    for part in place:
        models = [kind for kind in _within(model) if issubclass(kind, BaseModel)]
        found = next(
            (
                (name, field)
                for kind in models
                for name, field in kind.model_fields.items()
                if part in (name, field.alias)
            ),
            None,
        )
        if found is None:
            words.append(str(part))
            model = model if isinstance(part, int) else None
        else:
            words.append((found[1].alias or found[0]) if camel else found[0])
            model = found[1].annotation
    return words


def _within(annotation: Any) -> list[type]:
    """The classes that an annotation is made of."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in _within(part)]


def parse(model: type[P], params: Any, names: Mapping[str, str] | None = None) -> P:
    """The parameters, or what is wrong with them: the first thing in a sentence, all of them in the details.

    `names` says what the caller calls a field, where that is not the field's name; without it, as on RPC, fields
    are spelled in snake_case.
    """
    try:
        return model.model_validate({} if params is None else params)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
    fields = []
    for item in wrong[:20]:
        first, *rest = _spelled(model, item["loc"] or ("",), camel=names is not None)
        field = ".".join([(names or {}).get(first, first), *rest])
        fields.append({"field": field[:200], "message": item["msg"].removeprefix("Value error, ")})
    text = ": ".join(part for part in (fields[0]["field"], fields[0]["message"]) if part)
    raise InvalidRequest(text, details={"fields": fields})
