"""The house itself, and the tokens that open it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from coterie import __version__
from coterie.api.operation import Get, operation
from coterie.api.operations.agents import SyncReport, sync_report
from coterie.api.shapes import Answer, Change, Nothing, ShortText
from coterie.core.agent import AgentState
from coterie.core.token import Scope
from coterie.engine.backups import report
from coterie.engine.gateway import Gateway


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be one line without control characters")
    return value


class TokenCreate(Change):
    scope: Scope
    label: Annotated[str, Field(max_length=100), AfterValidator(_one_line)] | None = None


class TokenRef(Change):
    id: ShortText


class Health(Answer):
    status: Literal["ok"] = "ok"


class Ready(Answer):
    status: Literal["ready"] = "ready"


class BackupReport(Answer):
    """How the backups that the gateway makes by itself went last."""

    last_success: str | None = None
    file: str | None = None
    last_failure: str | None = None
    """Since the last success."""
    reason: str | None = None


class Status(Answer):
    version: str
    home: str
    pid: int
    started_at: str
    default_id: str
    agents: int
    config: SyncReport
    backup: BackupReport


class NewToken(Answer):
    token: str
    scope: Scope
    id: str


class TokenInfo(Answer):
    id: str
    scope: Scope
    label: str | None
    created_at: str
    revoked_at: str | None


class TokenList(Answer):
    tokens: list[TokenInfo]


class Revoked(Answer):
    revoked: bool
    id: str


@operation("healthz", None, http=Get("/healthz"), rpc=False)
async def healthz(gateway: Gateway, params: Nothing) -> Health:
    """The process answers. Needs no token."""
    return Health()


@operation("readyz", "read", http=Get("/readyz"), rpc=False)
async def readyz(gateway: Gateway, params: Nothing) -> Ready:
    """What is stored now is kept: the disk takes writes, and the database is whole as far as anybody has seen."""
    await gateway.condition.check()
    return Ready()


@operation("status", "read")
def status(gateway: Gateway, params: Nothing) -> Status:
    """What runs here, and whether agent.yaml is in force."""
    agents = [a for a in gateway.registry.agents() if a.state is AgentState.ACTIVE]
    return Status(
        version=__version__,
        home=str(gateway.home.path),
        pid=gateway.pid,
        started_at=datetime.fromtimestamp(gateway.started, UTC).isoformat().replace("+00:00", "Z"),
        default_id=gateway.registry.default().id,
        agents=len(agents),
        config=sync_report(gateway.registry.sync.state),
        backup=BackupReport(
            **{k: v for k, v in report(gateway.home).items() if k in BackupReport.model_fields}
        ),
    )


@operation("tokens.create", "admin")
def tokens_create(gateway: Gateway, params: TokenCreate) -> NewToken:
    """A new token; it is shown this once."""
    token, spelling = gateway.access.create(params.scope, params.label)
    return NewToken(token=spelling, scope=token.scope, id=token.id)


@operation("tokens.list", "admin")
def tokens_list(gateway: Gateway, params: Nothing) -> TokenList:
    """Every token ever made, without its secret."""
    return TokenList(tokens=[TokenInfo.of(token) for token in gateway.access.tokens()])


@operation("tokens.revoke", "admin")
def tokens_revoke(gateway: Gateway, params: TokenRef) -> Revoked:
    """Take a token back; connections that use it end at once."""
    gateway.access.revoke(params.id)
    gateway.events.publish("token.revoked", {"id": params.id})
    return Revoked(revoked=True, id=params.id)
